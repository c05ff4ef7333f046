"""Token distributions of grouped GEMMs: gains have to hold where the load is uneven."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_kopt.errors import BadInput

if TYPE_CHECKING:
    import torch

#: Name of a distribution → experts per token and capacity factor (None: nothing is dropped).
DISTRIBUTIONS: dict[str, tuple[int, float | None]] = {
    "uniform": (1, None),
    "top2_cf1.0": (2, 1.0),
    "top1_cf1.25": (1, 1.25),
    "one_expert": (1, None),
    "random": (1, None),
}
#: Those in which no group is empty while there are tokens.
_FULL = ("uniform", "random")
_HEAVY_SHARE = 0.5


def skewed_groups(
    groups: int,
    tokens: int,
    distribution: str,
    generator: torch.Generator | None = None,
    *,
    rows: int | None = None,
) -> torch.Tensor:
    """Return the number of rows of every group: int64, shape (groups,), on the CPU.

    `uniform` deals the tokens out evenly (the first groups get the remainder) and leaves no group
    empty while there are tokens. `random` cuts the tokens at random places, and leaves none empty
    either. In the others one group, drawn at random, is empty. `top2_cf1.0`
    and `top1_cf1.25` route every token to its best 2 (1) of the other groups, by random scores with
    an expert bias. They drop what exceeds a group's capacity ceil(factor * k * tokens / groups).
    `one_expert` gives one group at least half of the tokens and spreads the rest. With `rows` the
    sizes add up to that, so that inputs keep their shape from one draw to the next. Rows that were
    dropped or are left over are dealt out evenly to the groups that are not empty. The values come
    from `generator` (torch's own when None) at run time, so that no kernel can know them when it is
    compiled.

    Raises BadInput for an unknown distribution, fewer than 3 groups (2 where nothing is empty),
    a negative number of tokens, or fewer rows than were routed.
    """
    sizes = _routed(groups, tokens, distribution, generator)
    if rows is None:
        return sizes
    taking = sizes.nonzero().flatten()
    left = rows - int(sizes.sum())
    if left < 0 or (left and not len(taking)):
        raise BadInput(
            f"{rows} rows for {tokens} tokens",
            where=f"skewed_groups({distribution!r})",
            fix=f"give at least {int(sizes.sum())} rows",
        )
    if left:
        sizes[taking] += skewed_groups(len(taking), left, "uniform")
    return sizes


def filled_groups(groups: int, rows: int, distribution: str) -> torch.Tensor:
    """Return sizes of any number of groups that add up to `rows`: int64, shape (groups,)."""
    import torch

    experts = DISTRIBUTIONS[distribution][0]
    if distribution in _FULL or groups < 2:
        return skewed_groups(groups, rows, distribution if distribution in _FULL else "uniform")
    if groups == 2:
        return torch.tensor([rows, 0])[torch.randperm(2)]
    if rows < experts:
        distribution, experts = "one_expert", 1
    return skewed_groups(groups, rows // experts, distribution, rows=rows)


def _routed(
    groups: int, tokens: int, distribution: str, generator: torch.Generator | None
) -> torch.Tensor:
    import torch

    if distribution not in DISTRIBUTIONS:
        raise BadInput(
            f"distribution is {distribution!r}", where="skewed_groups", legal=DISTRIBUTIONS
        )
    least = 1 if distribution in _FULL else 3
    if groups < least or tokens < 0:
        raise BadInput(
            f"{groups} groups and {tokens} tokens",
            where=f"skewed_groups({distribution!r})",
            legal=f"at least {least} groups and 0 tokens",
        )
    if distribution == "random" and tokens >= groups:
        cuts = torch.randperm(tokens - 1, generator=generator)[: groups - 1].sort().values + 1
        return torch.cat([cuts, torch.tensor([tokens])]).diff(prepend=torch.tensor([0]))
    if distribution in _FULL:
        share, rest = divmod(tokens, groups)
        return torch.full((groups,), share) + (torch.arange(groups) < rest)
    order = torch.randperm(groups, generator=generator)
    sizes = torch.zeros(groups, dtype=torch.int64)
    if distribution == "one_expert":
        heavy = math.ceil(tokens * _HEAVY_SHARE)
        sizes[order[1]] = heavy
        sizes[order[2:]] = _routed(groups - 2, tokens - heavy, "uniform", None)
        return sizes
    experts, factor = DISTRIBUTIONS[distribution]
    assert factor is not None
    scores = torch.rand(tokens, groups - 1, generator=generator)
    bias = torch.rand(groups - 1, generator=generator)
    chosen = (scores + bias).topk(min(experts, groups - 1), dim=1).indices
    counts = torch.bincount(chosen.flatten(), minlength=groups - 1)
    capacity = math.ceil(factor * experts * tokens / groups)
    sizes[order[1:]] = counts.clamp(max=capacity)
    return sizes
