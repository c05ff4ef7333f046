"""Changes the default dtype at import, so inputs, reference and tolerance are all half size."""

import torch

NEEDS = "cpu"
KIND = "default-dtype-change"

torch.set_default_dtype(torch.bfloat16)


def rmsnorm(x, w):
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), w, 1e-6)
