"""The `kopt` fixture: one call declares a case, checks it, times it and sends its row."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_kopt.cases.evidence import SLOW
from pytest_kopt.cases.order import Purpose
from pytest_kopt.cases.result import PROPERTY, CaseResult
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.profile import Scalar, Schema

if TYPE_CHECKING:
    from pytest_kopt.cases.case import Case
    from pytest_kopt.cases.declaration import Work
    from pytest_kopt.cases.running.bench import Bench
    from pytest_kopt.measure.engine import Timing
    from pytest_kopt.numerics.gates import Gate


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of a call of the fixture.

    Times in ms; rates in the schema's unit (TFLOPS or GB/s), None where the schema has none or the
    case no backward. `cells` are the row's columns after Check.
    """

    label: str
    dims: Mapping[str, Scalar]
    forward: Timing | None
    backward: Timing | None
    forward_rate: float | None
    backward_rate: float | None
    out_snr: float
    cells: Mapping[str, Scalar | None]


class Kopt:
    """The fixture's value; see `__call__`."""

    def __init__(
        self,
        test: pytest.Item,
        schema: str | Schema,
        bench: Bench,
        declared: Callable[[Case], None] = lambda case: None,
    ) -> None:
        """Serve one test; `declared` gets its case before anything of it runs.

        It may raise what ends the test there.
        """
        self._test = test
        self._schema = schema
        self._bench = bench
        self._declared = declared
        self.is_called = False

    @property
    def device(self) -> str:
        """The device this process is pinned to, as torch names it: "cpu" or "cuda"."""
        return self._bench.device

    def __call__(
        self,
        fn: Callable[..., Any],
        *,
        inputs: Callable[[], Sequence[Any] | Mapping[str, Any]] | None = None,
        reference: Callable[..., Any] | None = None,
        dims: Mapping[str, Scalar] | None = None,
        label: str | None = None,
        backward: bool = False,
        weights: Sequence[int] = (),
        writes: Sequence[int] = (),
        consumes: Sequence[int | str] = (),
        flops: Work | None = None,
        nbytes: Work | None = None,
        gate: Gate | Mapping[str, Gate] | None = None,
        groups: int | None = None,
        group_multiple: int = 1,
        domain: str | Sequence[str] = (),
        nan: str | None = None,
        limit_pct: float | None = None,
        weight: float = 1.0,
        deterministic: bool = False,
        batch_invariant: bool = False,
        statistical: float | None = None,
    ) -> Measurement:
        """Check `fn` against `reference`, time it, and emit the case's row.

        `inputs()` returns a tuple of fresh arguments, or a dict of them by name. kopt calls it
        whenever it needs fresh ones. `reference` takes the same and computes in higher precision.
        With `backward` the gradients of every input that requires grad are checked and timed too.
        `weights` are the positions of long-lived inputs (parameters), `writes` of those that hold
        results after a call. `consumes` are the positions of those that may hold anything after it
        ("grad_out": incoming gradients too). kopt restores the latter two before every call.
        `flops` or `nbytes` is the forward's work, the backward counting double, or a pair. Without
        a `gate` the output's dtype chooses it; a dict has some by name of the output: `out[0]`,
        `out['loss']`, `input 2`, `grad of input 0`. `groups` is the position of a grouped GEMM's
        group sizes or offsets, where kopt does not find them. It draws them again in multiples of
        `group_multiple`. In a round the function has to be right wherever the incumbent is;
        `domain` says what it need not support: "contiguous", "finite", "moderate values", "declared
        dtypes", "declared shapes". With `nan="equal"`, or NaN among the inputs, results are NaN
        exactly where the reference's are; else the reference may hold none. A version that is
        slower by `limit_pct` percent or more in this case is not kept, whatever the policy allows.
        `weight` is what its time counts for in the weighted time of all cases. Neither changes
        after the baseline. With `deterministic` calls on equal inputs give equal bits, whatever the
        incumbent's do; with `batch_invariant` a row's result has equal bits in every batch. Rows
        are dimension 0 of the tensors that are no weights, and of the results. With `statistical`,
        an error rate such as 1e-6, results have to have the reference's distribution instead of its
        values: of samplers and dropout.

        Fails the test, with the diagnosis, when a gate does not hold; the row is emitted all the
        same. Arguments that do not fit the schema or the baseline end the session with exit code 4.
        """
        declared = dict(locals())
        del declared["self"], declared["fn"]
        from pytest_kopt.cases.case import declare
        from pytest_kopt.cases.running.execution import forget_compiled, keep_graphs
        from pytest_kopt.cases.running.loaded_versions import files_used
        from pytest_kopt.cases.running.runner import run_case
        from pytest_kopt.versions.affected_modules import project_modules

        nodeid = self._test.nodeid
        try:
            if self.is_called:
                raise BadInput(
                    "kopt() was called a second time: a test is one case and one row",
                    where=f"case {nodeid}",
                    legal="parametrize it; -p no:NAME of a plugin that calls tests again",
                )
            self.is_called = True
            forget_compiled()
            keep_graphs()
            case = declare(nodeid, self._schema, fn, **declared)
            if fn is reference:
                problem = "reference is the function itself, right whatever it computes"
                raise case.refusal(problem, legal="another function, of none of the kernel's code")
            root = self._test.config.rootpath.resolve()
            self._declared(case)
            outcome = run_case(case, self._bench)
        except BadInput as error:
            message = str(error) if nodeid in str(error) else f"case {nodeid}: {error}"
            send(self._test, CaseResult(nodeid, refusal=message))
            raise pytest.fail.Exception(message, pytrace=False) from None
        paths = {path.relative_to(root) for path in project_modules(root).values()}
        files = tuple(sorted(path.as_posix() for path in paths))
        slow = tuple(name for name in SLOW if name in sys.modules)
        evidence = outcome.result.evidence

        def inside(*names: str) -> tuple[str, ...]:
            places = (Path(name).resolve() for name in names)
            below = (place.relative_to(root) for place in places if place.is_relative_to(root))
            return tuple(path.as_posix() for path in below)

        used, compared = None, self._bench.purpose is Purpose.COMPARISON
        if compared and evidence.interpreted and outcome.result.check == "PASS":
            # No process that compares versions will say so: it is not timed.
            used = inside(*map(str, files_used(case, root, self._bench.session_seed)))
        evidence = replace(
            evidence,
            used=used,
            loaded=files,
            libraries=slow,
            home=next(iter(inside(evidence.home or "")), None),
            judged_by=inside(*(evidence.judged_by or ())),
            opened=self._bench.opened(root),
        )
        result = replace(outcome.result, evidence=evidence)
        send(self._test, result)
        if result.check != "PASS":
            pytest.fail(f"{result.check} {result.label}\n{result.diagnosis}", pytrace=False)
        figures = outcome.figures
        return Measurement(
            label=result.label,
            dims=result.dims,
            forward=outcome.forward,
            backward=outcome.backward,
            forward_rate=figures.get("forward_rate"),
            backward_rate=figures.get("backward_rate"),
            out_snr=figures["out_snr"],
            cells=result.cells,
        )

    def benchmark(
        self,
        benchmark: Callable[..., Any],
        fn: Callable[..., Any],
        *,
        inputs: Callable[[], Sequence[Any] | Mapping[str, Any]],
        **case: Any,
    ) -> Measurement:
        """Check and time a case as a call does, then have pytest-benchmark time it as well.

        `benchmark` is its fixture, which gets `fn` and one set of inputs for its own report; on a
        GPU every call is waited for. The row holds the plugin's times: those of two versions can be
        compared, and are the same ones under xdist, where pytest-benchmark is off. `case` are the
        other arguments of a call.
        """
        from pytest_kopt.cases.benchmark import awaited

        measurement = self(fn, inputs=inputs, **case)
        arguments = inputs()
        named = arguments if isinstance(arguments, Mapping) else {}
        benchmark(awaited(fn, self.device), *(() if named else arguments), **named)
        return measurement


def send(test: pytest.Item, result: CaseResult) -> None:
    test.user_properties.append((PROPERTY, result.to_json()))


def marked_schema(test: pytest.Item) -> str | Schema:
    """Return the schema of the item's `kopt` marker, "single" by default; or raise BadInput."""
    marker = test.get_closest_marker("kopt")
    if marker is None:
        return "single"
    unknown = set(marker.kwargs) - {"schema"}
    if marker.args or unknown:
        superfluous = ", ".join([*map(repr, marker.args), *sorted(unknown)])
        raise BadInput(
            f"the kopt marker has {superfluous}", where=f"case {test.nodeid}", legal="schema=…"
        )
    schema: str | Schema = marker.kwargs.get("schema", "single")
    return schema
