"""Mistakes of a first user, each with the one message that solves it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.case import declare
from pytest_kopt.cases.running.check import check_case
from pytest_kopt.errors import BadInput
from pytest_kopt.numerics.gates import snr
from tests.builders import a_bench

KEPT = torch.randn(8, 8)
GIVEN: dict[str, Any] = {
    "inputs": lambda: (torch.randn(8, 8),),
    "reference": lambda x: x.double() * 2,
    "dims": {"n": 8},
}


def doubled(x: Tensor) -> Tensor:
    return x * 2


def mutating(x: Tensor) -> Tensor:
    return x.mul_(2).double()


def writing(x: Tensor) -> None:
    x.mul_(2)


def forgetful(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[1:] = x[1:] * 2
    return out


def two(x: Tensor) -> tuple[Tensor, Tensor]:
    return x * 2, x


def raising(x: Tensor) -> Tensor:
    raise RuntimeError("a block of 64 does not fit 8 columns")


def autotuned(x: Tensor) -> Tensor:
    raise RuntimeError("0 active drivers ([]). There should only be one.")


class InterpreterError(Exception):
    """As Triton's is: the error of the kernel's line is its cause."""


def _kernel(eps: Any) -> None:
    eps.to(torch.float32)


def interpreted(x: Tensor) -> Tensor:
    try:
        _kernel(1e-6)
    except AttributeError as error:
        raise InterpreterError(repr(error)) from error
    return x


#: What was written, and what the message has to say: the mistake, and the way out.
MISTAKES: dict[str, tuple[Callable[..., Any] | Tensor, dict[str, Any], str]] = {
    "no reference": (doubled, {"reference": None}, r"reference is missing.*higher precision"),
    "no inputs": (doubled, {"inputs": None}, r"inputs is missing.*lambda: \(torch\.randn"),
    "no dims": (doubled, {"dims": None}, r"dims is missing.*\{'n': 4096\}"),
    "the result for the function": (KEPT, {}, r"function is a Tensor.*uncalled"),
    "arguments for a factory": (doubled, {"inputs": (KEPT,)}, r"inputs is a tuple.*lambda:"),
    "one tensor for a tuple": (
        doubled,
        {"inputs": lambda: torch.randn(8)},
        r"inputs\(\) returned Tensor.*a tuple of the function's arguments",
    ),
    "the same tensor in every call": (
        doubled,
        {"inputs": lambda: (KEPT,)},
        r"returns the same tensors in every call.*make fresh tensors",
    ),
    "an argument too many": (
        doubled,
        {"inputs": lambda: (torch.randn(8), 3)},
        r"inputs\(\) returns 2 arguments, and the function takes \(x.*the reference both take",
    ),
    "a reference of other arguments": (
        doubled,
        {"reference": lambda x, y: x},
        r"returns 1 argument, and the reference takes \(x, y\)",
    ),
    "a name that the function does not know": (
        doubled,
        {"inputs": lambda: {"y": torch.randn(8)}},
        r"inputs\(\) returns y, and the function takes \(x",
    ),
    "inputs on another device": (
        doubled,
        {"inputs": lambda: (torch.randn(8, device="meta"),), "reference": doubled},
        r"tensors on meta, but the session runs on cpu.*device=kopt\.device",
    ),
    "a result on another device": (
        lambda x: x.to("meta") * 2,
        {},
        r"out: is on meta, and the inputs are on cpu",
    ),
    "a reference that mutates": (
        doubled,
        {"reference": mutating},
        r"the reference writes to input 0 and the function does not. Fix: .*work on a copy",
    ),
    "a kernel that writes into its input": (
        writing,
        {},
        r"returns nothing, the reference out; if it writes into an input.*writes=\(POSITION,\)",
    ),
    "an undeclared write": (
        lambda x: x.mul_(2),
        {},
        r"(writes=\(0,\)|consumes=\(0,\))",
    ),
    "a part that is never written": (forgetful, {}, r"unwritten|NaN or Inf where the reference"),
    "a tuple where the reference has one": (
        two,
        {},
        r"returns out\[0\], out\[1\], the reference out",
    ),
    "another shape": (lambda x: x[:1] * 2, {}, r"has shape \(1, 8\), the reference \(8, 8\)"),
    "a reference with NaN": (
        doubled,
        {"reference": lambda x: x.double().log()},
        r"the reference returns NaN. Fix: draw inputs for which it is defined",
    ),
    "a kernel that raises": (raising, {}, r"in raising.*a block of 64 does not fit 8 columns"),
    "an autotuner without a device": (
        autotuned,
        {},
        r"Triton's interpreter cannot autotune.*one config where TRITON_INTERPRET is set",
    ),
    "what Triton's interpreter does not know": (
        interpreted,
        {},
        r"run it on a GPU.*in _kernel\n.*no attribute 'to'$",
    ),
    "a gate by name of a format": (doubled, {"gate": "e4m3"}, r"gate is 'e4m3'.*snr\("),
    "a gate of an output that is not there": (
        doubled,
        {"gate": {"loss": snr(40.0)}},
        r"gate has 'loss', and no output has this name.*allowed: out",
    ),
    "a backward without a gradient": (
        doubled,
        {"backward": True, "schema": "memory", "nbytes": 1.0},
        r"no input requires grad.*requires_grad=True",
    ),
    "a backward without columns": (
        doubled,
        {"backward": True},
        r"'single' has no backward column. Fix: use one of the schemas gemm, memory",
    ),
    "no work": (doubled, {"schema": "memory"}, r"schema 'memory' needs nbytes.*NUMBER, or a pair"),
    "an unknown schema": (doubled, {"schema": "norm"}, r"norm.*memory"),
    "a dim that is no scalar": (
        doubled,
        {"dims": {"n": (8, 8)}},
        r"dim 'n' is \(8, 8\).*int, float",
    ),
    "a complex output": (
        lambda x: torch.view_as_complex(x.view(8, 4, 2)),
        {"reference": lambda x: torch.view_as_complex(x.view(8, 4, 2))},
        r"complex.*view_as_real",
    ),
    "a sparse output": (
        lambda x: x.to_sparse_csr(),
        {"reference": lambda x: x.to_sparse_csr()},
        r"out of the reference is sparse. Fix: return its values and its indices",
    ),
    "a nested output": (
        lambda x: torch.nested.nested_tensor([x[0], x[1, :2]]),
        {"reference": lambda x: torch.nested.nested_tensor([x[0], x[1, :2]])},
        r"out of the reference is nested. Fix: return its values and its indices",
    ),
    "two numbers a byte": (
        lambda x: x.to(torch.uint8).view(torch.float4_e2m1fn_x2),
        {"reference": lambda x: x.to(torch.uint8).view(torch.float4_e2m1fn_x2)},
        r"out of the reference is float4. Fix: return tensor.view\(torch.uint8\)",
    ),
    "a sparse output of the kernel alone": (
        lambda x: (x * 2).to_sparse_csr(),
        {},
        r"is sparse, and the reference is not. Fix: return its values",
    ),
    "a gate of 1e-2 for float32 in half": (
        lambda x: (x.half() * 2).float(),
        {},
        r"torch reaches .* in float32, within the tolerance: the kernel is wrong",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_has_one_message_that_solves_it(name: str) -> None:
    function, changes, said = MISTAKES[name]
    given = {**GIVEN, **changes}
    try:
        case = declare("t.py::test_it", given.pop("schema", "single"), function, **given)  # type: ignore[arg-type]
        report = check_case(case, a_bench(case))
    except BadInput as refusal:
        text = str(refusal)
        assert "case t.py::test_it" in text or "torch.view_as_real" in text
    else:
        text = "\n".join([report.diagnosis, *map(str, report.findings)])
        assert report.check in ("FAIL", "ERROR")
        assert not any(found.rejects for found in report.findings), "no word of cheating"
    assert re.search(said, text, re.DOTALL), text
    assert "pytest_kopt/" not in text, "no traceback of ours"
