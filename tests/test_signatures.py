"""What kernels take and return: every kind of signature that a case can have."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.running.check import check_case
from pytest_kopt.errors import BadInput
from pytest_kopt.numerics.gates import snr, tolerance
from pytest_kopt.numerics.nested import flatten, fresh_copies, tensors
from pytest_kopt.versions import twin
from pytest_kopt.versions.affected_modules import NotLoadable
from tests.builders import a_bench

from .test_writes import case_of, check, timed

ROWS, COLUMNS = 16, 32


def one() -> tuple[Tensor]:
    return (torch.randn(ROWS, COLUMNS),)


@dataclass
class Output:
    """What a model's head returns."""

    logits: Tensor
    extra: dict[str, Any]


def as_dict(x: Tensor) -> dict[str, Any]:
    return {"loss": x.square().mean(), "z": [x + 1, x.exp()]}


def as_dataclass(x: Tensor) -> Output:
    return Output(x * 2, {"max": x.amax(1), "none": None})


def as_float(x: Tensor) -> float:
    return float(x.square().mean())


def as_top(x: Tensor) -> Any:
    return torch.topk(x, 3)


def as_mask(x: Tensor) -> tuple[Tensor, int]:
    return x > 0, int((x > 0).sum())


def as_nothing(x: Tensor) -> tuple[Tensor, None]:
    return x * 2, None


OUTPUTS: list[tuple[Callable[..., Any], set[str]]] = [
    (as_dict, {"out['loss']", "out['z'][0]", "out['z'][1]"}),
    (as_dataclass, {"out.logits", "out.extra['max']", "out.extra['none']"}),
    (as_float, {"out"}),
    (as_top, {"out[0]", "out[1]"}),
    (as_mask, {"out[0]", "out[1]"}),
    (as_nothing, {"out[0]", "out[1]"}),
]


@pytest.mark.parametrize(("function", "names"), OUTPUTS, ids=lambda x: getattr(x, "__name__", ""))
def test_what_a_kernel_returns_is_compared_by_name(
    function: Callable[..., Any], names: set[str]
) -> None:
    def reference(x: Tensor) -> Any:
        return function(x.double())

    assert set(flatten(function(*one()), "out")) == names
    result = timed(function, inputs=one, reference=reference)
    assert (result.check, result.findings) == ("PASS", ())
    assert float(result.cells["out_snr"] or 0) > 100


@pytest.mark.parametrize(
    ("wrong", "right", "said"),
    [
        (lambda x: as_dict(x) | {"loss": x.sum()}, as_dict, "out['loss']: outside the tolerance"),
        (
            lambda x: Output(x * 2, {"max": x.amin(1), "none": None}),
            as_dataclass,
            "out.extra['max']: outside the tolerance",
        ),
        (lambda x: as_float(x) * 1.01, as_float, "out: outside the tolerance"),
        (
            lambda x: (as_top(x)[0], as_top(x)[1].roll(1, 1)),
            as_top,
            "out[1]: outside the tolerance",
        ),
        (lambda x: (x >= 10, as_mask(x)[1]), as_mask, "out[0]: outside the tolerance"),
        (lambda x: (x > 0, as_mask(x)[1] + 1), as_mask, "out[1]: outside the tolerance"),
        (lambda x: (x * 2, 0), as_nothing, "out[1]: is 0, the reference None"),
        (lambda x: x * 2, as_nothing, "returns out, the reference out[0], out[1]"),
        (lambda x: None, as_float, "returns nothing, the reference out"),
    ],
)
def test_every_wrong_value_is_named(
    wrong: Callable[..., Any], right: Callable[..., Any], said: str
) -> None:
    report = check(wrong, inputs=one, reference=lambda x: right(x.double()))
    assert report.check == "FAIL" and said in report.diagnosis


def test_what_cannot_be_compared_says_so() -> None:
    with pytest.raises(BadInput, match="out of the reference is a set"):
        check(lambda x: {1}, inputs=one, reference=lambda x: {1})
    with pytest.raises(BadInput, match="returns nothing and writes to no input"):
        check(lambda x: None, inputs=one, reference=lambda x: None)


# --- gates ---------------------------------------------------------------------------------------


def coarse(x: Tensor) -> dict[str, Tensor]:
    return {"fine": x * 2, "coarse": (x * 2).half().float(), "index": x.argmax(1)}


def fine(x: Tensor) -> dict[str, Tensor]:
    return {"fine": x.double() * 2, "coarse": x.double() * 2, "index": x.argmax(1)}


def test_each_output_may_have_a_gate_of_its_own() -> None:
    given: dict[str, Any] = {"inputs": one, "reference": fine}
    assert check(coarse, **given, gate=tolerance(rtol=1e-6, atol=1e-6)).check == "FAIL"
    report = check(coarse, **given, gate={"out['coarse']": snr(60.0)})
    assert (report.check, report.figures["out_snr"] < 100) == ("PASS", True)
    strict = check(coarse, **given, gate={"out['coarse']": tolerance(rtol=0, atol=1e-7)})
    assert strict.check == "FAIL" and "out['coarse']" in strict.diagnosis
    with pytest.raises(BadInput, match="gate has 'loss', and no output has this name"):
        check(coarse, **given, gate={"loss": snr(60.0)})


def test_a_result_on_another_device_is_no_missing_name_of_a_gate() -> None:
    def elsewhere(x: Tensor) -> dict[str, Tensor]:
        return coarse(x) | {"index": torch.empty(x.shape[:1], device="meta")}

    report = check(elsewhere, inputs=one, reference=fine, gate={"out['coarse']": snr(60.0)})
    assert report.check == "FAIL" and "is on meta" in report.diagnosis


def test_a_loose_gate_does_not_loosen_indices() -> None:
    def swapped(x: Tensor) -> tuple[Tensor, Tensor]:
        values, places = x.sort(1)
        places[0, :2] = places[0, :2].flip(0)
        return values, places

    given: dict[str, Any] = {"inputs": one, "reference": lambda x: x.double().sort(1)}
    assert check(lambda x: x.sort(1), **given, gate=snr(20.0)).check == "PASS"
    assert check(swapped, **given, gate=snr(20.0)).check == "FAIL"


# --- arguments -----------------------------------------------------------------------------------


def scaled(x: Tensor, bias: Tensor | None, *, scale: float, mask: Tensor | None = None) -> Tensor:
    out = x * scale
    out = out if bias is None else out + bias
    return out if mask is None else out.masked_fill(mask, 0.0)


def test_arguments_may_have_names() -> None:
    def inputs() -> dict[str, Any]:
        return {
            "x": torch.randn(ROWS, COLUMNS),
            "bias": None,
            "scale": 0.5,
            "mask": torch.rand(ROWS, COLUMNS) > 0.5,
        }

    def reference(**given: Any) -> Tensor:
        return scaled(**(given | {"x": given["x"].double()}))

    result = timed(scaled, inputs=inputs, reference=reference)
    assert (result.check, result.findings) == ("PASS", ())


def test_arguments_by_name_have_positions_in_their_order() -> None:
    def inputs() -> dict[str, Any]:
        return {"x": torch.randn(8, 8), "out": torch.empty(8, 8)}

    report = check(
        lambda *, x, out: torch.mul(x, 2, out=out),
        inputs=inputs,
        reference=lambda x, out: x.double() * 2,
        writes=(1,),
    )
    assert (report.check, set(report.evidence.accuracy or ())) == ("PASS", {"out", "input 1"})


@dataclass(frozen=True)
class Groups:
    """A config that holds tensors."""

    xs: list[Tensor]
    factor: float


def grouped(groups: Groups) -> list[Tensor]:
    return [x * groups.factor for x in groups.xs]


def test_tensors_may_lie_in_lists_and_dataclasses() -> None:
    def inputs() -> tuple[Groups]:
        return (Groups([torch.randn(n, 8) for n in (3, 5)], 2.0),)

    def reference(groups: Groups) -> list[Tensor]:
        return [x.double() * groups.factor for x in groups.xs]

    result = timed(grouped, inputs=inputs, reference=reference)
    assert (result.check, result.findings) == ("PASS", ())
    (copy,) = fresh_copies(inputs())
    assert len(tensors(copy)) == 2 and copy.factor == 2.0


def test_a_gradient_is_asked_of_arguments_only() -> None:
    said = "a tensor inside a list, dict or dataclass requires grad"
    with pytest.raises(BadInput, match=said):
        check(
            lambda x, ys: x * ys[0],
            inputs=lambda: (one()[0].requires_grad_(), [one()[0].requires_grad_()]),
            reference=lambda x, ys: x.double() * ys[0].double(),
            backward=True,
            schema="memory",
            nbytes=1.0,
        )


@pytest.mark.parametrize("kind", ["transposed", "sliced", "expanded", "strided"])
def test_a_kernel_sees_the_strides_that_the_case_has(kind: str) -> None:
    strides: set[tuple[int, ...]] = set()

    def inputs() -> tuple[Tensor]:
        x = torch.randn(ROWS, COLUMNS)
        made = {
            "transposed": x.t(),
            "sliced": x[:, 3:9],
            "expanded": x[:1].expand(ROWS, COLUMNS),
            "strided": x[::2, ::2],
        }
        return (made[kind],)

    def kernel(x: Tensor) -> Tensor:
        strides.add(x.stride())
        return x * 2

    result = timed(kernel, inputs=inputs, reference=lambda x: x.double() * 2)
    assert (result.check, result.findings) == ("PASS", ())
    assert kind == "expanded" or strides == {inputs()[0].stride()}


# --- functions -----------------------------------------------------------------------------------


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        return function(*given, **named)

    return call


class Doubler:
    """A callable object, and a holder of methods."""

    def __call__(self, x: Tensor) -> Tensor:
        return x * 2

    def method(self, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def static(x: Tensor) -> Tensor:
        return x * 2


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "decorated": decorated(Doubler.static),
    "callable": Doubler(),
    "method": Doubler().method,
    "static": Doubler.static,
    "partial": functools.partial(torch.mul, other=2),
    "overload": functools.partial(torch.ops.aten.mul.Scalar, other=2),
    "packet": functools.partial(torch.ops.aten.mul, other=2),
    "module": torch.nn.Hardtanh(-1e9, 1e9),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_every_kind_are_checked(name: str) -> None:
    times = 1 if name == "module" else 2
    report = check(FUNCTIONS[name], inputs=one, reference=lambda x: x.double() * times)
    assert (report.check, report.findings) == ("PASS", [])


def test_an_operator_of_torch_is_a_function() -> None:
    report = check(torch.ops.aten.relu, inputs=one, reference=lambda x: x.double().relu())
    assert (report.check, report.findings) == ("PASS", [])


@pytest.mark.parametrize("pick", [lambda m: m, lambda m: m.forward], ids=["module", "method"])
@pytest.mark.parametrize("by_module", [True, False])
def test_what_a_module_holds_are_inputs_behind_its_own(
    pick: Callable[..., Any], by_module: bool
) -> None:
    module = torch.nn.Linear(COLUMNS, 8)
    reference: Any = copy.deepcopy(module).double()
    if not by_module:
        reference = lambda x, weight, bias: x.double() @ weight.double().t() + bias  # noqa: E731
    more: dict[str, Any] = {"schema": "memory", "nbytes": 1.0, "backward": True}
    case = case_of(pick(module), inputs=one, reference=reference, **more)
    assert case.weights == (1, 2) and len(case.arguments()) == 3
    with pytest.raises(NotLoadable, match=r"^Linear is an instance; one process asks for"):
        twin.own_file(case.function)
    report = check_case(case, a_bench(case))
    assert (report.check, report.findings) == ("PASS", []), report.diagnosis
    assert report.figures.keys() >= {"grad_snr:1", "grad_snr:2"}, "of weight and bias"
    wrong = copy.deepcopy(module)
    wrong.register_forward_hook(lambda module, given, out: out * 1.1)
    assert check(wrong, inputs=one, reference=reference).check == "FAIL"


def test_what_a_module_writes_is_compared() -> None:
    """A batch norm's running statistics are buffers."""
    module = torch.nn.BatchNorm1d(COLUMNS)

    def reference(x: Tensor, weight: Tensor, bias: Tensor, *state: Tensor) -> Tensor:
        wide = x.double()
        for held, now in zip(state, (wide.mean(0), wide.var(0)), strict=False):
            held.mul_(0.9).add_(0.1 * now)
        return torch.nn.functional.batch_norm(
            wide, None, None, weight.double(), bias.double(), training=True
        )

    def counting(*given: Tensor) -> Tensor:
        given[-1].add_(1)
        return reference(*given)

    report = check(module, inputs=one, reference=counting)
    assert (report.check, report.findings) == ("PASS", []), report.diagnosis
    report = check(module, inputs=one, reference=reference)
    assert report.check == "FAIL", "the reference forgets to count"


def test_other_methods_of_a_module_say_what_to_write_instead() -> None:
    with pytest.raises(BadInput, match=r"of a Linear, which holds weight, bias.*functional_call"):
        case_of(torch.nn.Linear(4, 4).extra_repr, inputs=one, reference=lambda x: x)


def test_a_module_is_a_case_by_its_parameters() -> None:
    module = torch.nn.Linear(COLUMNS, 8, bias=False)

    def layer(x: Tensor, weight: Tensor) -> Any:
        return torch.func.functional_call(module, {"weight": weight}, (x,))

    result = timed(
        layer,
        inputs=lambda: (*one(), torch.randn(8, COLUMNS)),
        reference=lambda x, weight: x.double() @ weight.double().t(),
        weights=(1,),
        gate=snr(80.0),
    )
    assert (result.check, result.findings) == ("PASS", ())
