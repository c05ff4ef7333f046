"""Judging one output against its reference, with the diagnosis that people need on failure.

Samplers are compared in distribution. Elements of one call may depend on each other, and calls do
not. So each call is reduced to a few figures, and those of one function's calls are compared with
the other's by the two-sample test of Kolmogorov and Smirnov. Its error rate holds for any
distribution, discrete ones too. A sampler that repeats results has fewer outcomes than the
reference.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy
import torch

from pytest_kopt.errors import BadInput
from pytest_kopt.figures import in_unit
from pytest_kopt.numerics.gates import Figures, Gate, default_gate, encoding, snr
from pytest_kopt.numerics.nested import same_bits

#: What is no number and can be compared all the same.
_VALUES = (type(None), str, torch.dtype, torch.device)
#: A result of at most so many different values is counted value by value, else between quantiles.
_SAMPLES, _QUANTILES = 16, 8
#: Elements that say which values there are.
_SAMPLED = 1 << 16
#: The bits of a float64's exponent.
_EXPONENT = 0x7FF << 52
#: Calls of each function, more of them where a result has few elements.
_FEWEST, _MOST, _ELEMENTS = 384, 2048, 1 << 21


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result for one tensor; `figures` is None when shapes or types cannot be compared."""

    name: str
    passed: bool
    gate: str
    reason: str
    figures: Figures | None = None
    encoding: str | None = None

    @property
    def snr_db(self) -> float:
        return self.figures.snr_db if self.figures else math.nan

    @property
    def line(self) -> str:
        """The result, its SNR and its gate, for a message that has one line for them."""
        snr = f"SNR {in_unit(self.snr_db, 'dB')}, " if self.figures else ""
        return f"{self.name}: {self.reason} ({snr}gate: {self.gate})"

    def diagnosis(self) -> str:
        """Return what a person needs to find the fault, one figure a line."""
        lines = [f"{self.name}: {self.reason} (gate: {self.gate})"]
        if self.encoding:
            lines.append(f"  encoding         {self.encoding}")
        if self.figures:
            f = self.figures
            lines += [
                f"  SNR              {in_unit(f.snr_db, 'dB')}",
                f"  max abs error    {f.max_abs:.6g}",
                f"  relative error   {f.relative:.6g}",
                f"  cosine           {f.cosine:.9f}",
                f"  worst index      {f.worst_index}: reference {f.worst_ref:.9g}, "
                f"output {f.worst_out:.9g}",
                f"  out of tolerance {100 * f.mismatch_share:.4f} % of the elements",
            ]
        return "\n".join(lines)


def compare(ref: object, out: object, gate: Gate | None = None, name: str = "out") -> Comparison:
    """Judge `out` against `ref` (same shape, any dtypes; compared in float64).

    Numbers count as tensors of one element, a Python float with the tolerance of float32; None,
    text and dtypes have to be equal.
    Without a gate the output's dtype chooses it. NaN or Inf in the output where the reference has
    none fails whatever the gate says, and so does another shape or something that is no tensor.
    Raises InvalidReference for NaN in the reference, BadInput for a dtype without a gate.
    """
    if not isinstance(ref, torch.Tensor | int | float):
        return _same(ref, out, name)
    if isinstance(out, float) and gate is None:
        gate = default_gate(torch.float32)
    ref = torch.as_tensor(ref)
    if isinstance(out, int | float) and not ref.ndim:
        out = torch.tensor(out)
    if without_numbers(ref) or not (isinstance(out, torch.Tensor) and out.shape == ref.shape):
        refuse_nan(wide(ref), name)
    if not isinstance(out, torch.Tensor):
        gate_text = gate.describe() if gate else "a tensor"
        return Comparison(
            name,
            False,
            gate_text,
            f"is {type(out).__name__}, not a tensor. Fix: return what it holds",
        )
    gate = gate or default_gate(out.dtype)
    code = encoding(out.dtype)
    if out.shape != ref.shape:
        reason = f"has shape {tuple(out.shape)}, the reference {tuple(ref.shape)}"
        return Comparison(name, False, gate.describe(), reason, encoding=code)
    try:
        figures = measure(ref, out, gate)
    except InvalidReference as error:
        raise InvalidReference(f"{name}: {error}") from None
    # Whose SNR is a number, or +inf, has none of these.
    if not figures.snr_db > -math.inf:
        bad = ~torch.isfinite(wide(out).to(ref.device)) & torch.isfinite(wide(ref))
        if bool(bad.any()):
            reason = f"has {int(bad.sum())} NaN or Inf where the reference has none"
            return Comparison(name, False, gate.describe(), reason, figures, code)
    passed = gate.passes(figures)
    reason = "within the tolerance" if passed else "outside the tolerance"
    return Comparison(name, passed, gate.describe(), reason, figures, code)


def _same(ref: object, out: object, name: str) -> Comparison:
    if not isinstance(ref, _VALUES):
        raise BadInput(
            f"{name} of the reference is a {type(ref).__name__}",
            legal="tensors, numbers, None, text, and lists, tuples, dicts or dataclasses of them",
        )
    passed = type(out) is type(ref) and out == ref
    reason = "equal" if passed else f"is {out!r}, the reference {ref!r}"
    return Comparison(name, passed, "equal", reason)


def measure(ref: torch.Tensor, out: torch.Tensor, gate: Gate) -> Figures:
    """Return the figures of two tensors of one shape; see `Figures` for the units."""
    expected, actual = vector(ref), vector(out.to(ref.device))
    if expected.numel() == 0:
        return Figures(math.inf, 0.0, 0.0, 0.0, 1.0, (), math.nan, math.nan, 0.0, True)
    noise, power = noise_in(expected, actual)
    norm = math.sqrt(float(expected @ expected))
    error = noise.abs_()
    is_finite = math.isfinite(power)
    is_plain = is_finite and math.isfinite(gate.atol + gate.rtol * norm)
    if not is_plain:
        error = torch.where(torch.isnan(error), math.inf, error)
    # numpy's takes a quarter of the time that torch's takes.
    worst = int((error.numpy() if error.device.type == "cpu" else error).argmax())
    most, wrong = float(error[worst]), 0
    # No element is allowed less than the absolute part of the tolerance.
    if not (is_plain and most <= gate.atol):
        allowed = expected.abs().mul_(gate.rtol).add_(gate.atol)
        right = error <= allowed
        if not is_plain:
            # An infinite reference has an infinite allowance, which excuses no finite output.
            right = (right & torch.isfinite(allowed)) | (expected == actual)
        wrong = right.numel() - int(right.count_nonzero())
    product = norm * math.sqrt(float(actual @ actual))
    loss = math.sqrt(power) if is_finite else math.inf
    return Figures(
        snr_db=snr_of(expected, power),
        max_abs=most,
        rms_error=loss / math.sqrt(error.numel()),
        relative=loss / norm if norm else (0.0 if most == 0 else math.inf),
        cosine=float(expected @ actual) / product if product else float(most == 0),
        # torch's takes seconds to import.
        worst_index=tuple(map(int, numpy.unravel_index(worst, ref.shape))),
        worst_ref=float(expected[worst]),
        worst_out=float(actual[worst]),
        mismatch_share=wrong / error.numel(),
        bitwise_equal=_are_equal(ref, out, expected, actual),
    )


def _are_equal(
    ref: torch.Tensor, out: torch.Tensor, expected: torch.Tensor, actual: torch.Tensor
) -> bool:
    """Say whether two tensors, given in float64 as well, have equal values."""
    if ref.dtype == out.dtype and not ref.is_floating_point():
        # Integers beyond 2^53 differ in their own dtype only.
        return same_bits(ref, out.to(ref.device))
    return torch.equal(expected, actual)


def assert_matches(
    ref: torch.Tensor, actual: torch.Tensor, gate: Gate | None = None, *, name: str = "out"
) -> None:
    """Raise AssertionError with the diagnosis unless `actual` meets the gate; see `compare`."""
    result = compare(ref, actual, gate, name)
    if not result.passed:
        raise AssertionError(result.diagnosis())


def assert_snr(ref: torch.Tensor, actual: torch.Tensor, threshold: str | float) -> None:
    """Raise AssertionError unless the SNR reaches the threshold (dB, or "e4m3", "e5m2", "fp4")."""
    assert_matches(ref, actual, snr(threshold))


def draws_for(elements: int) -> int:
    """Return how many calls of each function are compared for a result of `elements` elements."""
    return max(_FEWEST, min(_MOST, _ELEMENTS // max(elements, 1)))


class CallFigures:
    """Reduces a call's result, a tensor of any shape and dtype, to figures by name.

    They refer to the mean that some calls of the reference have, which are not compared.
    """

    def __init__(self, pilot: Sequence[torch.Tensor]) -> None:
        self._row = pilot[0].shape[-1] if pilot[0].ndim > 1 else 0
        self._mean = sum((vector(out) for out in pilot[1:]), vector(pilot[0])) / len(pilot)
        first = vector(pilot[0])
        sample = first[:: max(1, first.numel() // _SAMPLED)]
        values = sample.unique()
        if len(values) > _SAMPLES:
            steps = torch.arange(1, _QUANTILES, dtype=sample.dtype, device=sample.device)
            values = sample.quantile(steps / _QUANTILES).unique()
        self._edges = values

    def __call__(self, out: torch.Tensor) -> dict[str, float]:
        drawn = vector(out).to(self._mean.device)
        rest = drawn - self._mean
        bins = torch.bucketize(drawn, self._edges)
        counts = torch.bincount(bins, minlength=len(self._edges) + 1).tolist()
        figures = {
            "the sum": drawn.sum(),
            "the part along the mean": drawn @ self._mean,
            "the variance": rest @ rest,
            "the product of neighbours": rest[1:] @ rest[:-1],
        }
        if self._row:
            figures["the product of rows"] = rest[self._row :] @ rest[: -self._row]
        by_value = {
            f"the count up to {edge:.4g}": float(count)
            for edge, count in zip([*self._edges.tolist(), math.inf], counts, strict=True)
        }
        return {name: float(figure) for name, figure in figures.items()} | by_value


def difference(
    reference: Mapping[str, Sequence[float]],
    function: Mapping[str, Sequence[float]],
    error_rate: float,
) -> str:
    """Return how the figures of calls differ, "" where that may be chance.

    Both map names to one number a call. `error_rate` is how often functions that draw from one
    distribution are told apart, over all names together.
    """
    from scipy.stats import ks_2samp

    tests: dict[str, Any] = {
        name: ks_2samp(numbers, function[name], method="exact")
        for name, numbers in reference.items()
    }
    name = min(tests, key=lambda name: float(tests[name].pvalue))
    if tests[name].pvalue * len(tests) >= error_rate:
        return ""
    moments = (_moments(numbers[name]) for numbers in (function, reference))
    return (
        f"has another distribution than the reference's: {name} is "
        f"{next(moments)} over {len(function[name])} calls, the reference's "
        f"{next(moments)}; Kolmogorov-Smirnov distance "
        f"{tests[name].statistic:.2f}, p = {tests[name].pvalue:.1g}"
    )


def digest(out: torch.Tensor, dtype: torch.dtype) -> int:
    """Return a number that equal results share, by elements from all over a result in a dtype."""
    drawn = out.detach().flatten()[:: max(1, out.numel() // _SAMPLED)].to(dtype)
    return hash(drawn.cpu().contiguous().view(torch.uint8).numpy().tobytes())


def repetition(reference: Sequence[int], function: Sequence[int], error_rate: float) -> str:
    """Return how many results a function repeats, "" where that may be chance.

    A sampler has as many outcomes as the reference. If the distributions are equal, each of the two
    has half of the results that come more than once.
    """
    from scipy.stats import binom

    repeated, expected = (
        sum(count > 1 for count in Counter(digests).values()) for digests in (function, reference)
    )
    chance = float(binom.sf(repeated - 1, repeated + expected, 0.5))
    if chance >= error_rate:
        return ""
    return (
        f"has fewer outcomes than the reference: {repeated} results come more than once in "
        f"{len(function)} calls, {expected} of the reference's; p = {chance:.1g}"
    )


def _moments(numbers: Sequence[float]) -> str:
    drawn = torch.tensor(numbers, dtype=torch.float64)
    return f"{drawn.mean():.6g} ± {drawn.std():.2g}"


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
    # A quotient may be too small for a number, and be 0.
    if math.isinf(noise) or power / noise == 0:
        return -math.inf
    return 10 * math.log10(power / noise)


def refuse_nan(reference: torch.Tensor, name: str = "") -> None:
    """Raise InvalidReference where it holds NaN."""
    if bool(torch.isnan(reference).any()):
        where = f"{name}: " if name else ""
        raise InvalidReference(
            f"{where}the reference returns NaN. Fix: draw inputs for which it is defined, or "
            'declare nan="equal" in the case if NaN is a right result'
        )


def rounding_snr(values: torch.Tensor, dtype: torch.dtype) -> float:
    """Return the SNR in dB of one rounding of `values` (any shape) to a floating-point `dtype`.

    Expected for values that lie anywhere between two numbers of the dtype, whether or not these do:
    an error spread evenly over ±ulp/2 has a variance of ulp²/12. +inf where all values are zero.
    """
    signal = vector(values)
    if not math.isfinite(power := (signal @ signal).item()):
        signal = signal[torch.isfinite(signal)]
        power = (signal @ signal).item()
    limits = torch.finfo(dtype)
    # Without its other bits a float64 is its leading power of two; that of zero is zero.
    leading = (signal.view(torch.int64) & _EXPONENT).view(torch.float64)
    if not signal.numel() or leading.min() < limits.smallest_normal:
        leading = leading[signal != 0].clamp(min=limits.smallest_normal)
    if not leading.numel():
        return math.inf
    return 10 * math.log10(12 * power / (leading @ leading).item() / limits.eps**2)


def without_numbers(tensor: torch.Tensor) -> tuple[str, str] | None:
    """Return why a tensor has no elements in float64, and what to return instead; None: it has."""
    if tensor.is_complex():
        return "complex", "return torch.view_as_real(tensor)"
    if tensor.is_nested or tensor.layout is not torch.strided:
        return "nested" if tensor.is_nested else "sparse", "return its values and its indices"
    if str(tensor.dtype).startswith("torch.float4"):
        return "float4", "return tensor.view(torch.uint8), or its numbers in another dtype"
    return None


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor detached and in float64; BadInput for one that torch cannot convert."""
    if refused := without_numbers(tensor):
        raise BadInput(f"a tensor is {refused[0]}", fix=refused[1])
    return tensor.detach().to(torch.float64)


def vector(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements one after the other, `wide`: sums take them in one order then."""
    return wide(tensor).flatten().contiguous()
