"""Signal-to-noise ratio of an output against its reference."""

from __future__ import annotations

import math

import torch

from pytest_kopt.errors import BadInput


class InvalidReference(ValueError):
    """The reference itself holds NaN, so nothing can be compared with it."""


def compute_snr(ref: torch.Tensor, actual: torch.Tensor) -> float:
    """Return 10·log10(Σ|ref|² / Σ|ref − actual|²) in dB, accumulated in float64.

    `ref` and `actual` have the same shape, any real dtype, any device. Identical tensors give +inf
    (also empty and all-zero ones); a zero reference with any other output gives −inf; NaN in
    `actual` gives NaN, Inf where `ref` is finite −inf. Equal infinities at the same place count as
    no noise and no signal.

    Raises ValueError for different shapes and InvalidReference for NaN in `ref`.
    """
    if ref.shape != actual.shape:
        raise ValueError(f"shapes differ: ref {tuple(ref.shape)}, actual {tuple(actual.shape)}")
    signal, output = vector(ref), vector(actual.to(ref.device))
    return snr_of(signal, noise_in(signal, output)[1])


def noise_in(signal: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor, float]:
    """Return a vector's difference from `signal`, float64, and its power; NaN there is refused."""
    noise = output - signal
    power = (noise @ noise).item()
    # Where this is finite all is: no further look at millions of elements.
    if not math.isfinite(power):
        refuse_nan(signal)
        noise = torch.where(signal == output, 0.0, noise)
        power = noise.square().sum().item()
    return noise, power


def snr_of(signal: torch.Tensor, noise: float) -> float:
    """Return the SNR in dB of a vector in float64 with noise of a power, as `compute_snr` does."""
    if noise == 0:
        return math.inf
    if math.isnan(noise):
        return math.nan
    power = (signal @ signal).item()
    if math.isinf(power):
        power = torch.where(torch.isinf(signal), 0.0, signal).square().sum().item()
    if power == 0 or math.isinf(noise):
        return -math.inf
    return 10 * math.log10(power / noise)


def refuse_nan(reference: torch.Tensor, name: str = "") -> None:
    """Raise InvalidReference where it holds NaN."""
    if bool(torch.isnan(reference).any()):
        where = f"{name}: " if name else ""
        raise InvalidReference(
            f"{where}the reference holds NaN; draw inputs that it is defined for, or declare "
            'nan="equal" in the case where NaN is the answer'
        )


def rounding_snr(values: torch.Tensor, dtype: torch.dtype) -> float:
    """Return the SNR in dB of one rounding of `values` (any shape) to a floating-point `dtype`.

    Expected for values that lie anywhere between two numbers of the dtype, whether or not these do:
    an error spread evenly over ±ulp/2 has a variance of ulp²/12. +inf where all values are zero.
    """
    signal = wide(values)
    signal = signal[torch.isfinite(signal) & (signal != 0)]
    if not signal.numel():
        return math.inf
    limits = torch.finfo(dtype)
    _, exponents = torch.frexp(signal.abs().clamp(min=limits.smallest_normal))
    # frexp's mantissas lie in [1/2, 1), so that a number's leading bit is worth 2^(exponent − 1).
    ulps = torch.ldexp(torch.full_like(signal, limits.eps), exponents - 1)
    return 10 * math.log10(12 * signal.square().sum().item() / ulps.square().sum().item())


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor detached and in float64; BadInput for a complex one."""
    if tensor.is_complex():
        raise BadInput("a complex tensor", legal="real tensors; torch.view_as_real makes one")
    return tensor.detach().to(torch.float64)


def vector(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements one after the other, `wide`: sums take them in one order then."""
    return wide(tensor).flatten().contiguous()
