"""What a call writes into its inputs: results that are compared, for reference and kernel alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.order import Bench
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.cases.running import timing
from pytest_kopt.cases.running.check import CheckedCase, check_case
from pytest_kopt.cases.running.run_case import run_case
from pytest_kopt.cases.running.timed_calls import Content, input_sets
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.inputs import RestoredArguments
from pytest_kopt.measure.wall import WallEngine
from pytest_kopt.numerics.gates import snr
from pytest_kopt.numerics.nested import fresh_copies
from tests.builders import a_bench

ROWS, COLUMNS, POSITION = 64, 32, 5


def case_of(function: Callable[..., Any], **changes: Any) -> Case:
    schema = changes.pop("schema", "single")
    return declare("t.py::test_it", schema, function, **({"dims": {"rows": ROWS}} | changes))


def check(function: Callable[..., Any], **changes: Any) -> CheckedCase:
    case = case_of(function, **changes)
    return check_case(case, a_bench(case))


def timed(function: Callable[..., Any], **changes: Any) -> CaseResult:
    """Check and time a case as a session does it."""
    cpu = WallEngine(iterations=5, block_seconds=0.01)
    return run_case(case_of(function, **changes), Bench("cpu", "auto", 20260101, cpu=cpu))[0]


def twice(x: Tensor, out: Tensor) -> None:
    out.copy_(x.double() * 2)


# --- a buffer for the result, written by reference and kernel ------------------------------------


def add_into(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    return torch.add(x, y, out=out)


ADD: dict[str, Any] = {
    "inputs": lambda: tuple(torch.randn(ROWS, COLUMNS) for _ in range(3)),
    "reference": lambda x, y, out: out.copy_(x.double() + y.double()),
}


def test_a_buffer_that_the_reference_writes_is_a_result() -> None:
    def seven(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        out.fill_(7.0)
        return x + y

    report = check(seven, **ADD)
    assert report.check == "FAIL"
    assert "input 2: outside the tolerance" in report.diagnosis
    assert report.figures["out_snr"] < 10
    right = check(add_into, **ADD)
    assert (right.check, right.findings) == ("PASS", [])
    assert set(right.evidence.accuracy or ()) == {"input 2"}


def test_a_kernel_that_leaves_the_buffer_alone_fails() -> None:
    report = check(lambda x, y, out: x + y, **ADD)
    assert report.check == "FAIL" and "input 2" in report.diagnosis


def test_a_function_that_returns_nothing_is_judged_by_what_it_writes() -> None:
    def silent(x: Tensor, y: Tensor, out: Tensor) -> None:
        torch.add(x, y, out=out)

    def reference(x: Tensor, y: Tensor, out: Tensor) -> None:
        out.copy_(x.double() + y.double())

    report = check(silent, inputs=ADD["inputs"], reference=reference)
    assert (report.check, report.findings) == ("PASS", [])
    assert set(report.evidence.accuracy or ()) == {"input 2"}
    assert report.written == 4 * ROWS * COLUMNS
    wrong = check(lambda x, y, out: None, inputs=ADD["inputs"], reference=reference)
    assert wrong.check == "FAIL" and wrong.figures["out_snr"] < 10
    assert check(add_into, inputs=ADD["inputs"], reference=reference).check == "PASS"
    assert check(silent, **ADD).check == "PASS", "whether the buffer is returned as well is all one"


# --- caches --------------------------------------------------------------------------------------


def update(k: Tensor, cache: Tensor) -> Tensor:
    cache[:, POSITION] = k
    return cache.sum(1)


def cache_case(function: Callable[..., Any], **changes: Any) -> dict[str, Any]:
    def reference(k: Tensor, cache: Tensor) -> Tensor:
        cache[:, POSITION] = k
        return cache.double().sum(1)

    def inputs() -> tuple[Tensor, Tensor]:
        return torch.randn(4, COLUMNS), torch.randn(4, 1024, COLUMNS)

    return {"function": function, "inputs": inputs, "reference": reference} | changes


def test_an_update_that_was_deleted_is_wrong() -> None:
    def deleted(k: Tensor, cache: Tensor) -> Tensor:
        return cache.sum(1) - cache[:, POSITION] + k

    assert check(**cache_case(update)).check == "PASS"
    report = check(**cache_case(deleted))
    assert report.check == "FAIL" and "input 1: outside the tolerance" in report.diagnosis


@pytest.mark.parametrize("place", [POSITION, POSITION + 1], ids=["its", "another"])
def test_one_wrong_row_of_a_large_cache_is_wrong_under_any_gate(place: int) -> None:
    """Of the whole cache it is less than a thousandth: an SNR of 30 dB."""

    def careless(k: Tensor, cache: Tensor) -> Tensor:
        result = update(k, cache)
        cache[:, place] = 0
        return result

    assert check(**cache_case(update, gate=snr(25.0))).check == "PASS"
    report = check(**cache_case(careless, gate=snr(25.0)))
    assert report.check == "FAIL" and report.figures["out_snr"] < 10


def test_what_is_written_of_a_cache_is_what_changed() -> None:
    """More would be faster than physics allows; all of it may have been read."""
    report = check(**cache_case(update))
    assert report.written == 4 * (2 * 4 * COLUMNS)
    assert (report.evidence.io_bytes or {})["forward"] == 4 * ((3 + 1024) * 4 * COLUMNS)


def test_calls_that_count_on_find_their_counter_restored() -> None:
    """Left alone it would run out of the cache."""

    def append(k: Tensor, cache: Tensor, length: Tensor) -> Tensor:
        cache[int(length)] = k
        length += 1
        return cache[int(length) - 1] * 2

    def reference(k: Tensor, cache: Tensor, length: Tensor) -> Tensor:
        return append(k, cache, length).double()

    def inputs() -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(COLUMNS), torch.zeros(4, COLUMNS), torch.tensor(2)

    result = timed(append, inputs=inputs, reference=reference, gate=snr(40.0))
    assert result.check == "PASS", result.diagnosis
    assert result.findings == ()


def test_what_is_doubled_in_place_does_not_run_away() -> None:
    seen: list[float] = []

    def doubled(x: Tensor) -> Tensor:
        seen.append(float(x.abs().max()))
        return x.mul_(2)

    result = timed(
        doubled,
        inputs=lambda: (torch.rand(ROWS, COLUMNS) + 1,),
        reference=lambda x: x.mul_(2).double(),
    )
    assert result.check == "PASS", result.diagnosis
    assert result.evidence.samples_ms("forward") and result.findings == ()
    assert max(seen) < 4, "content of the case's own, or up to an eighth more"


def test_a_kernel_that_works_no_more_when_it_is_timed_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_tired = False
    genuine = timing.time_case

    def time_case(*arguments: Any) -> Any:
        nonlocal is_tired
        is_tired = True
        return genuine(*arguments)

    def tired(x: Tensor, out: Tensor) -> None:
        if not is_tired:
            torch.mul(x, 2, out=out)

    monkeypatch.setattr("pytest_kopt.cases.running.run_case.time_case", time_case)
    result = timed(
        tired,
        inputs=lambda: (torch.randn(8, 8), torch.zeros(8, 8)),
        reference=twice,
    )
    assert result.check == "FAIL"


# --- arguments that share memory -----------------------------------------------------------------


def test_copies_share_memory_as_their_originals_do() -> None:
    x = torch.arange(12.0).view(3, 4)
    one, again, row, apart = fresh_copies([x, x, x[1], torch.ones(2)])
    assert one is again and row.data_ptr() == one[1].data_ptr() != x[1].data_ptr()
    one.zero_()
    assert float(row.sum()) == 0 and float(x.sum()) == 66 and float(apart.sum()) == 2


def test_copies_keep_the_strides_of_a_slice() -> None:
    sliced = torch.arange(24.0).view(4, 6)[:, 1:4]
    (copy,) = fresh_copies([sliced])
    assert copy.stride() == (6, 1) and torch.equal(copy, sliced)
    assert fresh_copies([torch.ones(1, 3).expand(4, 3)])[0].is_contiguous()


def test_one_tensor_given_twice_is_written_in_both_places() -> None:
    def inputs() -> tuple[Tensor, Tensor]:
        x = torch.randn(ROWS, COLUMNS)
        return x, x

    def double(x: Tensor, out: Tensor) -> None:
        torch.add(x, x, out=out)

    report = check(double, inputs=inputs, reference=twice)
    assert (report.check, set(report.evidence.accuracy or ())) == ("PASS", {"input 0", "input 1"})


def test_held_arguments_are_restored_for_the_next_call() -> None:
    x, cache = torch.ones(2), torch.zeros(2)
    held = RestoredArguments([x, cache], (1,))
    assert held.source[0] is x and held.live[1] is cache
    cache.add_(x)
    held.restore()
    assert float(cache.sum()) == 0


# --- declared side effects -----------------------------------------------------------------------


def new(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """A reference that returns in higher precision what the kernel writes."""
    return x.double() + y.double()


def test_a_buffer_is_held_against_what_the_reference_returns() -> None:
    def silent(x: Tensor, y: Tensor, out: Tensor) -> None:
        torch.add(x, y, out=out)

    declared: dict[str, Any] = {"inputs": ADD["inputs"], "reference": new, "writes": (2,)}
    for kernel in (silent, add_into):
        report = check(kernel, **declared)
        assert (report.check, report.findings) == ("PASS", [])
        assert "input 2" in (report.evidence.accuracy or {})
    wrong = check(lambda x, y, out: x + y, **declared)
    assert wrong.check == "FAIL" and "input 2: outside the tolerance" in wrong.diagnosis


def test_what_is_returned_and_what_is_written_may_be_two_things() -> None:
    def both(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
        out.copy_(x - y)
        return x + y

    def reference(x: Tensor, y: Tensor, out: Tensor) -> tuple[Tensor, Tensor]:
        return x.double() + y.double(), x.double() - y.double()

    report = check(both, inputs=ADD["inputs"], reference=reference, writes=(2,))
    assert (report.check, set(report.evidence.accuracy or ())) == ("PASS", {"out", "input 2"})


def test_a_candidate_gives_all_that_the_baseline_gave() -> None:
    before = check(add_into, inputs=ADD["inputs"], reference=new, writes=(2,)).evidence.accuracy

    def silent(x: Tensor, y: Tensor, out: Tensor) -> None:
        torch.add(x, y, out=out)

    case = case_of(silent, inputs=ADD["inputs"], reference=new, writes=(2,))
    report = check_case(case, a_bench(case, accuracy=before))
    assert report.check == "FAIL"
    assert [found.check for found in report.findings] == ["output-type"]
    assert "out is missing, though the baseline returned it" in report.findings[0].message


def scratching(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    out.copy_(x)
    x.zero_()
    return out + y


@pytest.mark.parametrize(
    ("declared", "line"),
    [
        ({}, "writes=(0, 2) if it holds a result, consumes=(0, 2) if"),
        ({"consumes": (0,)}, "writes=(2,) if it holds a result, consumes=(0, 2) if"),
    ],
)
def test_an_undeclared_write_comes_with_the_line_to_add(
    declared: dict[str, Any], line: str
) -> None:
    result = timed(scratching, inputs=ADD["inputs"], reference=new, **declared)
    (finding,) = result.findings
    assert (result.check, finding.check, finding.rejects) == (
        "FAIL",
        "input-mutated",
        False,
    )
    assert line in result.diagnosis
    assert "cheat" not in result.diagnosis and not result.evidence.samples_ms("forward")


def test_what_is_consumed_may_hold_anything() -> None:
    result = timed(scratching, inputs=ADD["inputs"], reference=new, consumes=(0, 2))
    assert (result.check, result.findings) == ("PASS", ())


class Thrifty(torch.autograd.Function):
    """Writes gradients over what it saved and over the incoming one, as Liger's SwiGLU does."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return torch.nn.functional.silu(a) * b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        a, b = ctx.saved_tensors
        gate = torch.sigmoid(a)
        down = grad * a * gate
        up = grad * b * (gate * (1 + a * (1 - gate)))
        a.data.copy_(up)
        b.data.copy_(down)
        if Thrifty.takes_grad:
            grad.data.copy_(up)
        return a.detach(), b.detach()

    takes_grad = False


SWIGLU: dict[str, Any] = {
    "inputs": lambda: tuple(torch.randn(ROWS, COLUMNS, requires_grad=True) for _ in range(2)),
    "reference": lambda a, b: torch.nn.functional.silu(a.double()) * b.double(),
    "backward": True,
    "schema": "memory",
    "nbytes": 1.0,
}


@pytest.mark.parametrize("takes_grad", [False, True])
def test_a_backward_may_reuse_what_it_saved(
    takes_grad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Thrifty, "takes_grad", takes_grad)
    consumes = (0, 1, "grad_out") if takes_grad else (0, 1)
    result = timed(Thrifty.apply, consumes=consumes, **SWIGLU)
    assert (result.check, result.findings) == ("PASS", ())
    assert result.evidence.samples_ms("backward")
    undeclared = check(Thrifty.apply, **SWIGLU)
    assert undeclared.check == "FAIL" and not any(found.rejects for found in undeclared.findings)
    said = [str(found) for found in undeclared.findings]
    assert "consumes=(0, 1) if" in said[0]
    assert any("consumes=('grad_out',)" in line for line in said) is takes_grad


class HandsOn(torch.autograd.Function):
    """Writes one gradient over the incoming one and returns that, as Liger's RMSNorm does."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        return 2 * a + b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        given = grad.clone()
        return grad.mul_(2.0), given


@pytest.mark.parametrize(
    ("function", "scale", "consumes"), [(torch.add, 1.0, ()), (HandsOn.apply, 2.0, ("grad_out",))]
)
def test_a_gradient_may_lie_where_the_incoming_one_does(
    function: Any, scale: float, consumes: tuple[str, ...]
) -> None:
    """A sum hands the incoming gradient on: nothing was kept, and nothing overwritten."""
    changes = SWIGLU | {"reference": lambda a, b: scale * a.double() + b.double()}
    outcome = check(function, consumes=consumes, **changes)
    assert (outcome.check, outcome.findings) == ("PASS", [])


def test_a_kernel_gains_nothing_by_what_it_leaves_in_an_input() -> None:
    """Each call would find the answer of the one before, were its inputs not restored."""
    served: list[bool] = []

    def lazy(x: Tensor, y: Tensor, out: Tensor) -> None:
        served.append(float(out[0, 0]) == 7.0)
        if not served[-1]:
            torch.add(x, y, out=out)
        y.fill_(7.0)

    result = timed(lazy, inputs=ADD["inputs"], reference=new, writes=(2,), consumes=(1,))
    assert result.check == "PASS" and not any(served)
    undeclared = check(lazy, inputs=ADD["inputs"], reference=new, writes=(2,))
    assert undeclared.check == "FAIL"


@pytest.mark.parametrize(
    ("declared", "said"),
    [
        ({"writes": (7,)}, "writes has 7, and input 7 is not there"),
        ({"consumes": (0, 3)}, "consumes has 3, and input 3 is float"),
    ],
)
def test_positions_are_of_inputs_that_can_be_written(declared: dict[str, Any], said: str) -> None:
    def inputs() -> tuple[Any, ...]:
        return *ADD["inputs"](), 0.5

    with pytest.raises(BadInput, match=said):
        check(lambda x, y, out, scale: x, inputs=inputs, reference=new, **declared)


@pytest.mark.parametrize("given", [("out",), (-1,), (True,), "grad_out"])
def test_positions_are_numbers(given: Any) -> None:
    with pytest.raises(BadInput, match="writes is"):
        case_of(add_into, writes=given, **ADD)


# --- random numbers ------------------------------------------------------------------------------


def dropped(x: Tensor, generator: torch.Generator) -> Tensor:
    keep = torch.rand(x.shape, generator=generator) > 0.25
    return x * keep / 0.75


def seeded() -> tuple[Tensor, torch.Generator]:
    return torch.randn(ROWS, COLUMNS), torch.Generator().manual_seed(int(torch.randint(99, ())))


def test_kernel_and_reference_draw_alike_from_a_generator() -> None:
    result = timed(dropped, inputs=seeded, reference=lambda x, g: dropped(x.double(), g))
    assert (result.check, result.findings) == ("PASS", ())


def test_what_a_generator_draws_is_content_of_each_timed_call() -> None:
    """`inputs()` makes a generator of one seed always, so that what it draws could be kept."""
    case = case_of(
        dropped,
        inputs=lambda: (torch.randn(ROWS, COLUMNS), torch.Generator().manual_seed(7)),
        reference=lambda x, g: dropped(x.double(), g),
    )
    sets = dict(enumerate(input_sets([case], 0, range(3))))
    content, states = Content([case], sets, 3), set[bytes]()
    for seed in range(4):
        content.write(seed, "candidate")
        states |= {arguments[1].get_state().numpy().tobytes() for arguments in sets.values()}
    assert len(states) == 12


def test_a_generator_that_is_left_where_it_was_draws_the_same_again() -> None:
    def copying(x: Tensor, generator: torch.Generator) -> Tensor:
        own = torch.Generator()
        own.set_state(generator.get_state())
        return dropped(x, own)

    report = check(copying, inputs=seeded, reference=lambda x, g: dropped(x.double(), g))
    assert [found.check for found in report.findings] == ["generator-left"]
    assert report.check == "FAIL" and "input 1" in str(report.findings[0])
    own = check(copying, inputs=seeded, reference=lambda x, g: copying(x.double(), g))
    assert (own.check, own.findings) == ("PASS", [])


def test_draws_from_the_global_generator_are_told_what_to_do() -> None:
    def kernel(x: Tensor) -> Tensor:
        return torch.nn.functional.dropout(x, 0.25)

    inputs = lambda: (torch.randn(ROWS, COLUMNS),)  # noqa: E731
    report = check(kernel, inputs=inputs, reference=lambda x: x.double())
    assert report.check == "FAIL"
    (finding,) = report.findings
    assert (finding.check, finding.rejects) == ("global-generator", False)
    assert "return a torch.Generator or a seed" in str(finding)


@pytest.mark.parametrize("forks", [True, False])
def test_calls_that_seed_the_global_generator_are_told(forks: bool) -> None:
    """What is drawn after them, in training say, would repeat itself."""

    def kernel(x: Tensor) -> Tensor:
        with torch.random.fork_rng(enabled=forks):
            torch.manual_seed(0)
            return x + 0 * torch.rand_like(x)

    inputs = lambda: (torch.randn(ROWS, COLUMNS),)  # noqa: E731
    report = check(kernel, inputs=inputs, reference=lambda x: x.double())
    assert report.check == ("PASS" if forks else "FAIL")
    assert [found.check for found in report.findings] == ([] if forks else ["generator-left"])
    own = check(kernel, inputs=inputs, reference=lambda x: kernel(x.double()))
    assert (own.check, own.findings) == ("PASS", [])


# --- references that cannot be judged by ---------------------------------------------------------


def test_a_reference_that_writes_now_and_then_is_no_reference() -> None:
    calls: list[int] = []

    def moody(x: Tensor) -> Tensor:
        calls.append(1)
        return x.mul_(2).double() if len(calls) > 1 else x.double() * 2

    report = check(lambda x: x * 2, inputs=lambda: (torch.randn(8, 8),), reference=moody)
    assert report.check == "ERROR"
    assert "the reference writes to input 0 in some calls only" in report.diagnosis


def test_a_backward_that_torch_sees_overwrite_its_memory_may_do_so() -> None:
    """torch refuses a second backward over such a graph: nothing of ours may ask for one."""

    class Thrifty(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, y: Tensor) -> Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
            x, y = ctx.saved_tensors
            before = x.clone()
            return x.copy_(grads[0] * y), y.copy_(grads[0] * before)

    result = timed(
        Thrifty.apply,
        inputs=lambda: tuple(torch.randn(ROWS, COLUMNS, requires_grad=True) for _ in range(2)),
        reference=lambda x, y: x.double() * y.double(),
        consumes=(0, 1),
        backward=True,
        schema="memory",
        nbytes=12.0 * ROWS * COLUMNS,
    )
    assert (result.check, result.findings) == ("PASS", ()), result.diagnosis


# --- results in lists, dicts and dataclasses -----------------------------------------------------


@dataclass
class State:
    x: Tensor
    total: Tensor | None = None


def listed(x: Tensor, outs: list[Tensor]) -> None:
    outs.append(2 * x)
    outs.append(x.sum(-1))


def named(x: Tensor, stats: dict[str, Any]) -> Tensor:
    stats["total"], stats["rows"] = x.sum(-1), len(x)
    return 2 * x


def stated(state: State) -> Tensor:
    state.total = state.x.sum(-1)
    return 2 * state.x


def only_one(x: Tensor, outs: list[Tensor]) -> None:
    outs.append(2 * x)


def halved(x: Tensor, stats: dict[str, Any]) -> Tensor:
    out = named(x, stats)
    stats["total"] /= 2
    return out


def of_three_rows(x: Tensor, stats: dict[str, Any]) -> Tensor:
    out = named(x, stats)
    stats["rows"] = 3
    return out


def unstated(state: State) -> Tensor:
    return 2 * state.x


EARLIER: list[Tensor] = []


def earlier(x: Tensor, outs: list[Tensor]) -> None:
    if not EARLIER:
        listed(x, EARLIER)
    outs += EARLIER


def drawn() -> Tensor:
    return torch.randn(ROWS, COLUMNS)


@pytest.mark.parametrize(
    ("right", "wrong", "inputs", "said"),
    [
        (listed, only_one, lambda: (drawn(), []), "returns input 1, the reference input 1[0]"),
        (listed, earlier, lambda: (drawn(), []), "input 1[0] (new content"),
        (named, halved, lambda: (drawn(), {}), "input 1['total']: outside the tolerance"),
        (named, of_three_rows, lambda: (drawn(), {}), "input 1['rows']"),
        (
            stated,
            unstated,
            lambda: (State(drawn()),),
            "returns out, the reference out, input 0.total",
        ),
    ],
)
def test_what_is_put_into_an_input_is_a_result(
    right: Callable[..., Any], wrong: Callable[..., Any], inputs: Callable[[], Any], said: str
) -> None:
    def reference(*given: Any) -> Any:
        return right(*given)

    report = check(right, inputs=inputs, reference=reference)
    assert (report.check, report.findings) == ("PASS", [])
    report = check(wrong, inputs=inputs, reference=reference)
    assert report.check == "FAIL" and said in report.diagnosis


def test_what_is_put_there_without_a_word_is_named() -> None:
    def remembering(x: Tensor, seen: list[Tensor]) -> Tensor:
        seen.append(x)
        return 2 * x

    report = check(remembering, inputs=lambda: (drawn(), []), reference=lambda x, seen: 2 * x)
    assert [found.check for found in report.findings] == ["input-mutated"]


def test_timed_calls_find_a_list_as_it_is_made() -> None:
    lengths = set[int]()

    def counting(x: Tensor, outs: list[Tensor]) -> None:
        lengths.add(len(outs))
        listed(x, outs)

    result = timed(counting, inputs=lambda: (drawn(), []), reference=listed)
    assert result.check == "PASS" and result.evidence.samples_ms("forward")
    assert lengths == {0}
