"""Every kernel of the corpus in a round of a real campaign: no unreal gain is credited.

One cheat is in the default suite; `long` ones take half an hour together.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from . import nursery
from .corpus.through_plugin import HERE, Bench, Outcome, kernels, main

pytest.importorskip("torch")

SAMPLE = "swiglu__molt"


def some(kind: str) -> list[object]:
    """The kernels of a kind that run on the CPU; all but one are `long`."""
    return [
        pytest.param(path, id=path.stem, marks=() if path.stem == SAMPLE else pytest.mark.long)
        for path in kernels("cpu")
        if path.parent.name == kind
    ]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Projects with a decided baseline, made when they are first needed."""
    return Bench(tmp_path_factory.mktemp("corpus"), "cpu", nursery.run)


def judged(bench: Bench, path: Path) -> Outcome:
    outcome = bench.judge(path)
    assert outcome.is_right, f"{outcome.decision} by {outcome.named}: {outcome.reason}"
    return outcome


@pytest.mark.parametrize("path", some("cheats"))
def test_a_cheat_is_credited_with_no_gain_that_it_does_not_have(bench: Bench, path: Path) -> None:
    assert judged(bench, path).kind == "cheats"


@pytest.mark.parametrize("path", some("honest"))
def test_an_honest_kernel_is_not_refused(bench: Bench, path: Path) -> None:
    assert judged(bench, path).kind == "honest"


def test_a_name_that_no_kernel_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["through_plugin.py", SAMPLE, "molten"])
    with pytest.raises(SystemExit, match="2"):
        main()
    told = capsys.readouterr().err
    assert "no kernel for cpu has 'molten' in its name" in told and SAMPLE in told


@pytest.fixture(scope="module")
def invariant(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Projects whose cases declare `batch_invariant`."""
    folder = tmp_path_factory.mktemp("invariant")
    return Bench(folder, "cpu", nursery.run, batch_invariant=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "is_variant"), [("rmsnorm__split_when_few", True), ("rmsnorm__split_by_width", False)]
)
def test_rows_that_depend_on_their_batch_fail_where_the_case_declares_that_none_does(
    invariant: Bench, name: str, is_variant: bool
) -> None:
    """Without the declaration the first kernel is honest, as the test above shows."""
    outcome = invariant.judge(HERE / "honest" / f"{name}.py")
    assert (outcome.decision == "REPAIR") == is_variant, outcome
    assert ("batch-variant" in outcome.named) == is_variant, outcome
    assert is_variant or outcome.is_right, outcome
