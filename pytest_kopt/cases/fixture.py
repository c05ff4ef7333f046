"""The value of the `kopt` fixture: one call declares a case, checks and times it, sends its row.

`plugin.py` defines the fixture; `Worker.fixture` in `session/worker.py` makes its value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_kopt.cases.evidence import SLOW
from pytest_kopt.cases.order import ArmsOrder, Bench, hold_against_baseline
from pytest_kopt.cases.protocol import (
    CaseServed,
    CheckCase,
    Client,
    LoadReference,
    LoadVersions,
    Profile,
    TryNearby,
)
from pytest_kopt.cases.replies import FallbackRow, Profiled
from pytest_kopt.cases.result import OUTSIDE, PROPERTY, CaseResult
from pytest_kopt.errors import BadInput
from pytest_kopt.schema.columns import Scalar, Schema
from pytest_kopt.versions.twin import kernel_calls

if TYPE_CHECKING:
    from pytest_kopt.cases.case import Case, Work
    from pytest_kopt.measure.engine import Timing
    from pytest_kopt.numerics.gates import Gate

#: The row of a test that ends without one of its own.
FALLBACK = pytest.StashKey[CaseResult]()


@dataclass(frozen=True, slots=True)
class Measurement:
    """The result of a call of the fixture.

    Times are in ms. Rates are in the schema's unit (TFLOPS or GB/s), None if the schema has none or
    the case no backward. `cells` are the row's columns after Check.
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
        test: pytest.Function,
        schema: str | Schema,
        bench: Bench,
        client: Client | None,
    ) -> None:
        """Serve one test; without a `client` its case can only be checked."""
        self._test = test
        self._schema = schema
        self._bench = bench
        self._client = client
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
        limit_us: float | None = None,
        weight: float = 1.0,
        cache: str = "cold",
        operating_point: str | None = None,
        deterministic: bool = False,
        batch_invariant: bool = False,
        statistical: float | None = None,
    ) -> Measurement:
        """Check `fn` against `reference`, time it if the session measures, and emit the row.

        - `inputs`: called for each set of fresh arguments; returns a tuple, or a dict by name.
        - `reference`: takes the same arguments and computes in higher precision.
        - `dims`, `label`: the columns and the name of the row.
        - `backward`: check and time the gradient of every input that requires one, too.
        - `weights`: positions of long-lived inputs (parameters).
        - `writes`, `consumes`: positions of inputs that hold results after a call, or that may hold
          anything then ("grad_out": incoming gradients too). kopt restores both before a call.
        - `flops`, `nbytes`: the forward's work, or a pair with the backward's (default: double).
        - `gate`: the tolerance; the default follows from the output's dtype. A dict has some by the
          output's name: `out[0]`, `out['loss']`, `input 2`, `grad of input 0`.
        - `groups`, `group_multiple`: position of a grouped GEMM's group sizes or offsets, if kopt
          does not find them, and the number of rows that divides every size that kopt draws.
        - `domain`: inputs that the function need not support: "contiguous", "finite", "moderate
          values", "declared dtypes", "declared shapes" and others. In a round the function has to
          be right for any other input for which the current best is. Words such as "autocast" and
          "second gradients" declare a use in which it has to be right as well.
        - `nan`: "equal" if results may be NaN exactly where the reference's are. NaN among the
          inputs implies it; otherwise the reference may hold none.
        - `limit_pct`, `limit_us`: a version that is slower by this many percent and by this many
          microseconds here is not kept, whatever the policy allows. `weight`: the factor of this
          case in the weighted time of all cases.
        - `cache`: "cold" if a timed call finds its inputs in memory, "warm" if it finds them in the
          cache, as after the step that has just written them. `operating_point`: the clock of a GPU
          that decides here, "boost" or "sustained" (None: the manifest's).
          None of `limit_pct`, `limit_us`, `weight`, `cache`, `operating_point` changes after the
          baseline.
        - `deterministic`: calls on equal inputs give equal bits, whatever the current best's do.
        - `batch_invariant`: a row's result has equal bits in every batch. Rows are dimension 0 of
          results, and of inputs that are no weights.
        - `statistical`: an error rate such as 1e-6, for samplers and dropout. Results have the
          reference's distribution instead of its values.

        If a gate does not hold, the test fails with the diagnosis, and the row is emitted.
        Arguments that do not fit the schema or the baseline end the session with exit code 4.
        """
        declared = dict(locals())
        del declared["self"], declared["fn"]
        from pytest_kopt.cases.case import declare
        from pytest_kopt.cases.running.autotuning import choices_made, preset_choices
        from pytest_kopt.cases.running.execution import forget_compiled, keep_graphs
        from pytest_kopt.cases.running.loaded_versions import files_used
        from pytest_kopt.cases.running.run_case import run_case
        from pytest_kopt.versions.affected_modules import project_modules

        nodeid = self._test.nodeid
        try:
            if self.is_called:
                raise BadInput(
                    "kopt() was called a second time, and a test is one case",
                    where=f"case {nodeid}",
                    fix="parametrize the test, or switch off a plugin that calls tests again: "
                    "-p no:NAME",
                )
            self.is_called = True
            forget_compiled()
            keep_graphs()
            bench = self._bench
            preset_choices(bench.preset_choices, is_fixed=bench.arms is not None)
            case = declare(nodeid, self._schema, fn, **declared)
            if fn is reference:
                problem = "reference is the function itself, so every result would be right"
                fix = "give a reference that runs none of the kernel's code"
                raise case.refusal(problem, fix=fix)
            root = self._test.config.rootpath.resolve()
            self._admit(case, root)
            client = self._client
            if client is not None and not isinstance(client.order, CheckCase):
                self._serve(case, client, client.order)
                raise CaseServed
            result, timings, figures = run_case(case, self._bench)
        except BadInput as error:
            message = str(error) if nodeid in str(error) else f"case {nodeid}: {error}"
            send(self._test, CaseResult(nodeid, refusal=message))
            raise pytest.fail.Exception(message, pytrace=False) from None
        paths = {path.relative_to(root) for path in project_modules(root).values()}
        files = tuple(sorted(path.as_posix() for path in paths))
        slow = tuple(name for name in SLOW if name in sys.modules)
        evidence = result.evidence

        def inside(*names: str) -> tuple[str, ...]:
            places = (Path(name).resolve() for name in names)
            below = (place.relative_to(root) for place in places if place.is_relative_to(root))
            return tuple(path.as_posix() for path in below)

        home = Path(evidence.home or "")
        used, compared = None, self._bench.compares
        if compared and evidence.interpreted and result.check == "PASS":
            # No process that compares versions will say so: it is not timed.
            used = inside(*map(str, files_used(case, root, self._bench.session_seed)))
        evidence = replace(
            evidence,
            used=used,
            loaded=files,
            libraries=slow,
            autotuned=choices_made() or None,
            # A function from elsewhere has an absolute path; a tree of a version holds links.
            home=next(
                iter(inside(str(home))), None if home.is_relative_to(root) else evidence.home
            ),
            judged_by=inside(*(evidence.judged_by or ())),
            opened=self._bench.opened(root),
        )
        result = replace(result, evidence=evidence)
        send(self._test, result)
        if result.check != "PASS":
            pytest.fail(f"{result.check} {result.label}\n{result.diagnosis}", pytrace=False)
        times: list[Timing | None] = [*timings, None, None]
        return Measurement(
            label=result.label,
            dims=result.dims,
            forward=times[0],
            backward=times[1],
            forward_rate=figures.get("forward_rate"),
            backward_rate=figures.get("backward_rate"),
            out_snr=figures["out_snr"],
            cells=result.cells,
        )

    def _admit(self, case: Case, root: Path) -> None:
        """Skip a case that is not selected; raise BadInput where it is imported from elsewhere."""
        if self._bench.decides:
            from pytest_kopt.versions.executed_files import check_imported_here

            called = getattr(case.function, "__module__", None) or ""
            trees = self._bench.arms.trees if self._bench.arms else ()
            check_imported_here(root, called, f"case {case.nodeid}", trees)
        skip_outside(self._test, case.label, self._bench.selected)
        row = CaseResult.undecided(
            case.nodeid, case.schema, case.dims, case.label, backward=case.backward
        )
        send_fallback(self._test, row, self._client)

    def _serve(
        self,
        case: Case,
        client: Client,
        order: Profile | LoadVersions | TryNearby | LoadReference,
    ) -> None:
        """Carry out the order that a case is run for, and those that the client sends within it.

        A case is served within its test, in whatever contexts that has entered.
        """
        bench, arms = self._bench, self._bench.arms or ArmsOrder(())
        hold_against_baseline(case, bench.expected)
        match order:
            case Profile(marked_steps=steps):
                from pytest_kopt.cases.running.profile_region import profile_case

                client.send(Profiled(profile_case(case, bench, marked_steps=steps)))
            case LoadReference():
                from pytest_kopt.cases.running.judge_orders import serve_judge

                serve_judge(case, bench, arms, client)
            case LoadVersions(out=out):
                from pytest_kopt.cases.running.timed_versions import serve_arms

                with kernel_calls() as set_by_tests:
                    serve_arms(case, bench, arms.without(out), client, set_by_tests)
            case TryNearby(secret=secret):
                from pytest_kopt.cases.running.timed_versions import try_nearby

                with kernel_calls() as set_by_tests:
                    try_nearby(case, bench, arms, client, self._test, secret, set_by_tests)

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
    """Have the report of the test carry the row; `Controller` hands it to its `Collector`."""
    test.user_properties.append((PROPERTY, result.to_json()))


def send_fallback(test: pytest.Item, result: CaseResult, client: Client | None) -> None:
    """Have a test get this row where it ends without one of its own, or ends its process."""
    test.stash[FALLBACK] = result
    if client is not None and isinstance(client.order, CheckCase):
        client.send(FallbackRow(result.to_json()))


def skip_outside(test: pytest.Item, label: str, selected: Collection[str]) -> None:
    """Skip a case that the campaign's target_shapes leave out; its report tells the label."""
    if selected and label not in selected and test.nodeid not in selected:
        test.user_properties.append((OUTSIDE, label))
        pytest.skip(f"{label} is not in target_shapes")


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
