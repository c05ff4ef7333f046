"""Judging one output against its reference, with the diagnosis people need on failure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pytest_kopt.errors import BadInput
from pytest_kopt.numerics.gates import Figures, Gate, default_gate, encoding, snr
from pytest_kopt.numerics.snr import (
    InvalidReference,
    noise_in,
    refuse_nan,
    snr_of,
    vector,
    wide,
)

#: What is no number and can be compared all the same.
_VALUES = (type(None), str, torch.dtype, torch.device)


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

    def diagnosis(self) -> str:
        """Return what a person needs to find the fault, one figure a line."""
        lines = [f"{self.name}: {self.reason} (gate: {self.gate})"]
        if self.encoding:
            lines.append(f"  encoding         {self.encoding}")
        if self.figures:
            f = self.figures
            lines += [
                f"  SNR              {f.snr_db:.2f} dB",
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
    if ref.is_complex() or not (isinstance(out, torch.Tensor) and out.shape == ref.shape):
        refuse_nan(wide(ref), name)
    if not isinstance(out, torch.Tensor):
        gate_text = gate.describe() if gate else "a tensor"
        return Comparison(
            name, False, gate_text, f"is {type(out).__name__}, not a tensor: return what it holds"
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
            reason = f"holds {int(bad.sum())} NaN or Inf where the reference has none"
            return Comparison(name, False, gate.describe(), reason, figures, code)
    passed = gate.passes(figures)
    reason = "within the gate" if passed else "outside the gate"
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
        return Figures(math.inf, 0.0, 0.0, 1.0, (), math.nan, math.nan, 0.0, True)
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
        relative=loss / norm if norm else (0.0 if most == 0 else math.inf),
        cosine=float(expected @ actual) / product if product else float(most == 0),
        worst_index=_index(worst, ref.shape),
        worst_ref=float(expected[worst]),
        worst_out=float(actual[worst]),
        mismatch_share=wrong / error.numel(),
        # Integers beyond 2^53 are told apart in their own dtype only.
        bitwise_equal=torch.equal(expected, actual)
        if ref.dtype != out.dtype
        else torch.equal(ref.detach(), out.detach().to(ref.device)),
    )


def _index(place: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Return an element's index by its place; torch's way takes seconds to import."""
    digits = []
    for size in reversed(shape):
        place, digit = divmod(place, size)
        digits.append(digit)
    return tuple(reversed(digits))


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


__all__ = ["Comparison", "InvalidReference", "assert_matches", "assert_snr", "compare", "measure"]
