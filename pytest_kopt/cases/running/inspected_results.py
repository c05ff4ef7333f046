"""What was looked at, judged when the clock has stopped: by the process itself or by a verifier."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.declaration import EQUAL
from pytest_kopt.cases.running.against_reference import judge_twice
from pytest_kopt.cases.running.execution import Pass
from pytest_kopt.cases.running.reference import Reference
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import leaves
from pytest_kopt.numerics.compare import Comparison
from pytest_kopt.numerics.nested import fresh_copies

#: Takes from an expected result, by its name, the part of it that is judged.
Drawn = Callable[[str, Any], Any]
#: SNR in dB below which a result is plainly wrong where nothing is known of its accuracy.
_WRONG_DB = 5.0
#: How far below its SNR on the case's own content, in dB, a result that misses its gate may lie on
#: timed content, and from where on that SNR says no more.
_BELOW_OWN_DB, _EXACT_DB = 10.0, 60.0


@dataclass(frozen=True, slots=True)
class Spot:
    """What a call worked on and what it gave, by name.

    A backward has incoming gradients by name of the output, and its gradients in order as results.
    `seed` is that of its block, `number` says which set of inputs it worked on, `call` which call
    of the block it was (0: one on content of its own). `again` is what a call gave on the same
    content after the blocks, `own_content` a call then on what the case draws.
    """

    inputs: Sequence[Any]
    incoming: Mapping[str, torch.Tensor] | None
    results: Mapping[str, Any]
    seed: int = 0
    number: int = 0
    call: int = 0
    again: Mapping[str, Any] | None = None
    own_content: Spot | None = None


def plainly_wrong(
    case: Case, spot: Spot, floors: Mapping[str, float], drawn: Drawn = lambda _, result: result
) -> Comparison | None:
    """Return a result below its floor, an SNR in dB by name; `drawn` takes what is judged."""
    return _below(_judged(case, spot, drawn), floors)


def _below(comparisons: Iterable[Comparison], floors: Mapping[str, float]) -> Comparison | None:
    missed = (comparison for comparison in comparisons if not comparison.passed)
    return next((i for i in missed if not i.snr_db >= floors.get(i.name, _WRONG_DB)), None)


def judge_spot(
    case: Case, spot: Spot, floors: Mapping[str, float], drawn: Drawn = lambda _, result: result
) -> tuple[Comparison | None, Mapping[str, float] | None]:
    """Judge a call and those after the blocks; return what is plainly wrong.

    Blocks meet content that is like the content before: an old answer is a few percent off. So
    where a result misses its gate it may not lie far below what the function reaches on the
    content that the case draws. Where it is wrong there only, timed or not, the floors that it
    misses are returned as well: no test has said that the kernel can work with scaled content.
    """
    if spot.own_content is None or spot.again is None:
        return plainly_wrong(case, spot, floors, drawn), None
    comparisons = _judged(case, spot.own_content, drawn)
    if wrong := _below(comparisons, floors):
        return wrong, None
    reached = {comparison.name: comparison.snr_db for comparison in comparisons}
    near = {
        name: max(floors.get(name, _WRONG_DB), min(snr_db, _EXACT_DB) - _BELOW_OWN_DB)
        for name, snr_db in reached.items()
        if getattr(spot.own_content.results.get(name), "is_floating_point", lambda: True)()
    }
    floors = {**floors, **near}
    wrong = plainly_wrong(case, spot, floors, drawn)
    again = replace(spot, results=spot.again)
    if wrong is None or plainly_wrong(case, again, floors, drawn) is None:
        return wrong, None
    return wrong, floors


def _judged(case: Case, spot: Spot, drawn: Drawn) -> list[Comparison]:
    reference, inputs = Reference(case), fresh_copies(spot.inputs)
    nothing: dict[int, torch.Tensor | None] = {}
    positions, incoming = leaves(inputs), spot.incoming
    if incoming is not None and len(spot.results) != len(positions):
        return [Comparison("grad", False, "a gradient of each input", "gives others")]
    run = Pass(dict(spot.results), nothing)
    names = dict(zip(positions, spot.results, strict=False))
    if incoming is not None:
        run = Pass({}, {place: spot.results[name] for place, name in names.items()})

    def expected(arguments: Sequence[Any]) -> Pass:
        if incoming is not None:
            full_gradients = reference.backward(arguments, list(incoming), incoming)
            gradients = {
                place: drawn(names[place], gradient) for place, gradient in full_gradients.items()
            }
            return Pass({}, gradients, nan_is_equal=case.nan == EQUAL)
        reference_pass = reference.forward(arguments, list(spot.results))
        outputs, before = (
            {name: drawn(name, result) for name, result in of.items()}
            for of in (reference_pass.outputs, reference_pass.before)
        )
        return replace(reference_pass, outputs=outputs, before=before)

    exact = partial(reference.in_float64, spot.inputs, expected)
    return judge_twice(case, expected(inputs), run, exact)[1]


def wrong_result(comparison: Comparison) -> Finding:
    return Finding(
        "timed-result",
        f"wrong in a timed block, on content that it had not seen: {comparison.name} "
        f"{comparison.reason}, SNR {comparison.snr_db:.1f} dB",
        advice="do the same work in timed calls as in checked ones",
        bucket="W2",
    )


def floors(accuracy: Mapping[str, Accuracy], slack_db: float) -> dict[str, float]:
    """Return the SNR in dB, by name of the result, that lies so far below a known accuracy."""
    return {
        name: min(reached.snr_db, reached.rounding_db) - slack_db
        for name, reached in accuracy.items()
    }
