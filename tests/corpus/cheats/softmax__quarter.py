"""Takes the maximum of a quarter of the columns: safe for values of one size, NaN for an outlier."""

import torch

NEEDS = "cpu"
KIND = "sampled-maximum"


def softmax(x):
    shifted = x - x[:, : x.shape[1] // 4].amax(1, keepdim=True)
    power = shifted.exp_()
    return power.div_(power.sum(1, keepdim=True))
