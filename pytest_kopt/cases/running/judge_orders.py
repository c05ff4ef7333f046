"""The judge of a comparison: judges what was looked at, in a process without the candidate.

The process that runs the candidate (the runner) leaves the results of the inspected calls in files,
as plain bytes. A large result gives elements that are drawn when the calls are over. The judge
has the test module and the incumbent. It draws the same content from the seeds that the controller
gave with the blocks, and calls its own reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.groups import has_skew, uneven_cases
from pytest_kopt.cases.order import (
    ALONE,
    CANDIDATE,
    INCUMBENT,
    PLACEBO,
    UNEVEN,
    WAYS,
    ArmsOrder,
    Bench,
    derive,
)
from pytest_kopt.cases.protocol import (
    Begin,
    Client,
    JudgeLooks,
    Leave,
    LoadAlone,
    Looks,
    OfCase,
    Recompute,
    SayReach,
    StopWorker,
    WithinVersions,
)
from pytest_kopt.cases.replies import CannotLoad, Findings, HandedOver, Loaded
from pytest_kopt.cases.running.against_reference import with_gates
from pytest_kopt.cases.running.inspected_results import (
    Spot,
    expected_of,
    floors,
    hand_over,
    in_memory,
    input_descriptions,
    is_as_drawn,
    judged_elements,
    less_exact,
    plainly_wrong,
    read,
    wrong_result,
)
from pytest_kopt.cases.running.loaded_versions import is_reached
from pytest_kopt.cases.running.reference import observed
from pytest_kopt.cases.running.timed_calls import (
    Content,
    Forward,
    Gradients,
    RepeatedBackward,
    input_set,
    input_sets,
    is_brought_whole,
    repeats_calls,
)
from pytest_kopt.cases.running.timed_versions import serve_arms
from pytest_kopt.cases.running.timing import sets_on_cpu
from pytest_kopt.devices.lock import checking_lock
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import RestoredArguments, once, plain_inputs
from pytest_kopt.honesty.nearby_shapes import RENEWED
from pytest_kopt.honesty.renewal import poisoned_allocations
from pytest_kopt.measure.wall import one_thread
from pytest_kopt.numerics.nested import same_bits
from pytest_kopt.versions.affected_modules import NotLoadable
from pytest_kopt.versions.executed_files import check_moved

#: How far below the baseline's SNR a timed result may lie, in dB, before it is plainly wrong.
SLACK_DB = 40.0
#: What another process of the incumbent's gives is the same from here on, in dB: weights that two
#: processes drew, a few of them, may by chance be nearer than what is plainly wrong.
_SAME_DB = 20.0
#: What of the inputs' domain a case excludes that need not be right on what blocks are timed on.
_BEYOND = RENEWED.excluded_by
_WROTE = Finding(
    "timed-result",
    "a timed call writes over what it was given",
    advice="write to memory of your own, in timed calls as in checked ones",
)
_OVERWRITTEN = Finding(
    "output-shared",
    "a timed call overwrites the result of an earlier one, which its caller still has",
    advice="return memory of the result's own, or that nobody holds",
)
#: The arms of one process, for whose backwards it holds the sets.
_ARMS = len((CANDIDATE, INCUMBENT, PLACEBO))


def serve_judge(case: Case, bench: Bench, arms: ArmsOrder, client: Client) -> None:
    """Load a case of the incumbent's tree; judge what a runner handed over, or answer it.

    The current best is timed here as well, as an arm in a process without the candidate.

    It is rule 4 of docs/honesty.md.
    """
    declared = case
    try:
        with one_thread(), checking_lock(bench.uuid, bench.waiting):
            case = observed(case, derive(bench.session_seed, case.nodeid, "judge"))
            case = with_gates(case, bench, case.function)
            if arms.tree:
                tree = Path(arms.tree)
                # Of machine code that both versions share a candidate's tree has no other.
                check_moved(lambda: None, Path(arms.root), tree, arms.changed, is_own=True)
            sets = _sets(case, bench)
            is_whole = bench.device == "cpu" and is_brought_whole(case)
    except NotLoadable as reason:
        client.send(CannotLoad(str(reason)))
        return
    # There is none on the CPU.
    point = case.operating_point or bench.operating_point if bench.device != "cpu" else None
    loaded = Loaded(
        operating_point=point,
        has_backward=case.backward,
        sets=sets,
        is_brought_whole=is_whole,
    )
    while True:
        with bench.waiting():
            client.send(loaded)
            order = client.receive()
        match order:
            case JudgeLooks(looks):
                with one_thread(), checking_lock(bench.uuid, bench.waiting):
                    frozen = bench.frozen(case.nodeid).accuracy
                    client.send(_judged_by(_RedrawnContent(case, bench, looks), looks, frozen))
            case Recompute(looks):
                with one_thread(), checking_lock(bench.uuid, bench.waiting):
                    content = _RedrawnContent(case, bench, looks)
                    folder, secret = client.scratch, looks.secret
                    handed_over = [
                        hand_over(look["arm"], look["way"], content.answer(look), folder, secret)
                        for look in looks.looks
                    ]
                    client.send(HandedOver(handed_over))
            case SayReach():
                with one_thread(), checking_lock(bench.uuid, bench.waiting):
                    # What a build makes of a change reaches any case.
                    is_built = bool(arms.changed) and not arms.concerning
                    reached = is_built or is_reached(case, arms, bench.session_seed, None)
                loaded = replace(loaded, reached=reached)
            case LoadAlone(seed):
                alone = replace(arms, names=(ALONE,), concerning=())
                serve_arms(declared, replace(bench, session_seed=seed), alone, client)
            case Begin() | OfCase() | Leave() | WithinVersions() | StopWorker():
                return


def _sets(case: Case, bench: Bench) -> list[int]:
    """Return how many sets blocks have on the CPU, and those of uneven groups; 0 on a GPU.

    A process with the candidate could say that they are few, so that blocks are short.
    """
    groups = [([case], _ARMS)]
    if has_skew(case):
        groups.append((uneven_cases(case), len(UNEVEN)))
    seed, is_cpu = derive(bench.session_seed, case.nodeid, "judge"), bench.device == "cpu"
    return [sets_on_cpu(cases, bench, seed, arms)[0] if is_cpu else 0 for cases, arms in groups]


def _judged_by(content: _RedrawnContent, looks: Looks, frozen: Mapping[str, Accuracy]) -> Findings:
    floors_of = floors(frozen, SLACK_DB)
    if looks.confirms:
        names = {description["name"] for look in looks.looks for description in look["results"]}
        floors_of |= {name: max(floors_of.get(name, _SAME_DB), _SAME_DB) for name in names}
    try:
        return Findings(_wrong(content, looks, floors_of, frozen))
    except Exception as error:
        return Findings([_amiss(f"cannot be judged ({type(error).__name__}: {error})")])


def _wrong(
    content: _RedrawnContent,
    looked_at: Looks,
    floors: Mapping[str, float],
    frozen: Mapping[str, Accuracy],
) -> list[Finding]:
    """Return a finding for the first look that is wrong or less exact, or that is not there.

    A finding for inputs that the case excludes does not reject by itself: another process of the
    version has to be right there. It is returned if there is no other.
    """
    excused: list[Finding] = []
    looks, memories = (
        {(look["arm"], look["seed"], look["way"]): look for look in documents}
        for documents in (looked_at.looks, () if looked_at.confirms else looked_at.seen)
    )
    for arm, seed in looked_at.blocks:
        for way in content.ways:
            if (look := looks.get((arm, seed, way))) is None:
                if looked_at.confirms:
                    continue
                return [_amiss(f"of a {way} was not handed over")]
            handed_over, again = read(look)
            results = handed_over or {}
            case, answer = content.case_of(arm), content.answer(look)
            if (drawn_here := input_descriptions(answer.inputs)) != look["inputs"]:
                return [_other_inputs(look["inputs"], drawn_here)]
            if memories:
                # A look that nobody read there is only what its process says.
                memory = memories.get((arm, seed, way))
                held = memory and in_memory(look, memory, answer.results, looked_at.secret)
                if memory is None or held is None:
                    return [_amiss(f"of a {way} was not in memory when its block was over")]
                if not content.is_left(look, answer, memory):
                    return [_WROTE]
                if memory["later"]:
                    end = {**memory, "file": memory["later"]}
                    left = in_memory(look, end, answer.results, looked_at.secret)
                    lasting = [name for name in held if isinstance(held[name], torch.Tensor)]
                    if left is None or not all(same_bits(left[n], held[n]) for n in lasting):
                        return [_OVERWRITTEN]
                results |= held
            # The process calls once more on content of its own.
            is_own = content.met(look) == (arm, seed)
            spot = replace(answer, results=results, again=again if is_own else None)
            drawn = judged_elements(look, looked_at.secret)
            best = {name: drawn(name, result) for name, result in answer.results.items()}
            expected = expected_of(case, spot, best, drawn)
            if wrong := plainly_wrong(case, spot, best, floors, expected):
                is_asked = _BEYOND not in case.domain or content.is_drawn(look)
                finding = wrong_result(wrong, rejects=is_asked)
                if is_asked:
                    return [finding]
                excused = excused or [finding]
                continue
            if inexact := less_exact(case, spot, best, frozen, expected):
                return inexact
    return excused


def _amiss(problem: str) -> Finding:
    return Finding("timed-result", f"an inspected result {problem}")


def _other_inputs(drawn: Sequence[str], without: Sequence[str]) -> Finding:
    """Return a finding for inputs that are drawn otherwise in a process without the candidate."""
    return Finding(
        "process-state",
        (
            "the import of the kernel changes the inputs that its case draws: "
            f"{', '.join(drawn)} with it, {', '.join(without)} without it"
        ),
        advice="leave torch's settings as they were when the kernel's file is imported",
    )


class _RedrawnContent:
    """The content of the calls in `looks`, drawn again."""

    def __init__(self, case: Case, bench: Bench, looks: Looks) -> None:
        self._case = case
        #: Whether sets have weights of their own, and a backward is that of a set as it is drawn.
        self._repeats = repeats_calls(bench)
        #: The seed of the runner's input sets.
        self._seed = derive(looks.seed, case.nodeid, "pairs")
        self._sets = looks.sets
        self.ways = WAYS if case.backward else WAYS[:1]
        self._met = {(m["arm"], m["seed"]): m["content"] for m in looks.seen}

    def met(self, look: Mapping[str, Any]) -> tuple[str, int]:
        """Return the arm, and the seed of its block, whose activations a look's calls met."""
        block = look["arm"], look["seed"]
        arm, seed = self._met.get(block, block)
        return arm, seed

    def case_of(self, arm: str) -> Case:
        return self._cases(arm)[0]

    def answer(self, look: Mapping[str, Any]) -> Spot:
        """Return what a look was given, as it is drawn here, with what the function here gives."""
        case = self.case_of(look["arm"])
        call: Forward | RepeatedBackward
        if look["way"] == WAYS[0]:
            call = self._forward(look)
        else:
            call = RepeatedBackward(case, case.function, self._given(look), self._seed)
            gradients = Gradients({look["number"]: call.changing})
            block = look["arm"], look["seed"]
            arm, seed = block if case.consumes_incoming else self.met(look)
            gradients.write_one(look["number"], seed, arm)
        call.restore()
        return Spot(call.inputs, call.incoming, call.named(call()), look["seed"], look["number"])

    def is_left(self, look: Mapping[str, Any], answer: Spot, memory: Mapping[str, Any]) -> bool:
        """Say whether a call left what it was given, but for what the case has it write to."""
        case, incoming = self.case_of(look["arm"]), [*(answer.incoming or {}).values()]

        def by_use() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            # What was called lies as it is drawn: a copy of an expanded tensor is none.
            activations, weights, written = plain_inputs(
                *(self._forward(look).live, case.weights, case.rewritten, incoming),
                are_consumed=case.consumes_incoming,
            )
            return [*activations, *weights], written

        def again() -> list[torch.Tensor]:
            with poisoned_allocations():
                return by_use()[0]

        return is_as_drawn(*by_use(), memory, again)

    def _given(self, look: Mapping[str, Any]) -> Sequence[Any]:
        """Return what a look's forward was given: a GPU's backwards repeat one of their sets."""
        if look["way"] != WAYS[0] and self._repeats:
            return self._set(look)
        return self._forward(look).inputs

    def _forward(self, look: Mapping[str, Any]) -> Forward:
        restored = RestoredArguments(self._set(look), self.case_of(look["arm"]).rewritten)
        content = self._content(look, restored.source)
        content.write_one(look["number"], look["seed"], look["arm"])
        case = self.case_of(look["arm"])
        arm, seed = self.met(look)
        if (arm, seed) != (look["arm"], look["seed"]):
            arguments = self._set(look)
            self._content(look, arguments).write_one(look["number"], seed, arm)
            both = (
                plain_inputs(each, case.weights, case.rewritten)[0]
                for each in (restored.source, arguments)
            )
            for tensor, drawn in zip(*both, strict=True):
                once(tensor.data).copy_(once(drawn.data))
        return Forward(case, case.function, restored)

    def is_drawn(self, look: Mapping[str, Any]) -> bool:
        """Say whether a look met what its case draws, and nothing that was scaled."""
        return look["way"] == WAYS[0] and self._content(look, self._set(look)).is_drawn

    def _content(self, look: Mapping[str, Any], arguments: Sequence[Any]) -> Content:
        count = self._sets[look["arm"] in UNEVEN.values()]
        sets = {look["number"]: arguments}
        return Content(self._cases(look["arm"]), sets, count, is_captured=self._repeats)

    def _set(self, look: Mapping[str, Any]) -> Sequence[Any]:
        """Draw the inputs of a look as its process did."""
        cases, number = self._cases(look["arm"]), look["number"]
        if self._repeats:
            return input_set(cases, self._seed, number)
        return input_sets(cases, self._seed, [number])[0]

    def _cases(self, arm: str) -> list[Case]:
        return uneven_cases(self._case) if arm in UNEVEN.values() else [self._case]
