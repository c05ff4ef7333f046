"""A bounded pool of scratch tensors by shape; their contents never outlive a call."""

from collections import OrderedDict

import torch

NEEDS = "cpu"


class Pool:
    """At most `limit` scratch tensors; the least recently used shape goes first."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.slots: OrderedDict[tuple, torch.Tensor] = OrderedDict()

    def scratch(self, like: torch.Tensor) -> torch.Tensor:
        key = (tuple(like.shape), like.dtype, like.device)
        if key not in self.slots:
            self.slots[key] = torch.empty_like(like)
            if len(self.slots) > self.limit:
                self.slots.popitem(last=False)
        self.slots.move_to_end(key)
        return self.slots[key]


_pool = Pool(limit=4)


def swiglu(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    sigmoid = torch.sigmoid(gate, out=_pool.scratch(gate))
    return gate.mul(sigmoid).mul_(up)
