"""Random histories of a campaign against a small model of the rules.

Rounds of every outcome, kills at any step on disk, the user's edits at any time, notes, stops,
second sessions and refused requests, in any order; after every step the campaign is held against
`model_campaign`. STATEFUL_STEPS says how many steps are taken (about).
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.state import fold
from tests.campaigns import status_of
from tests.crash import Held, Recording, Steps, held
from tests.driven_campaign import (
    CASES,
    OTHERS,
    DrivenCampaign,
    Ran,
    files_below,
    made_quick,
)
from tests.model_campaign import KEEPS, OUTCOMES, Attempt, Model, Outcome, Version

#: Steps taken, by kind.
TAKEN: Counter[str] = Counter()
#: Sessions have some sixty steps on disk; decisions are written and carried out in the middle.
POINTS = st.one_of(st.integers(1, 65), st.integers(24, 37))
TORN = st.sampled_from([None, 0.0, 0.3, 0.6, 0.9])
FIRST = {"kernels/a.py": b"VERSION = 0\n"}


class Histories(RuleBasedStateMachine):
    """Campaigns without git."""

    in_git = False

    def __init__(self) -> None:
        super().__init__()
        memory = Path("/dev/shm")
        home = tempfile.mkdtemp(prefix="histories-", dir=memory if memory.is_dir() else None)
        self.root = Path(home).resolve() / "project"
        self.project: DrivenCampaign
        self.model: Model
        self.versions = 0
        self.is_shown = True
        self.seen: dict[Path, bytes] = {}
        self.stood: tuple[bytes, bytes] | None = None

    @initialize(
        iterations=st.sampled_from([None, None, 8]), goal=st.sampled_from([None, None, 333.337])
    )
    def start(self, iterations: int | None, goal: float | None) -> None:
        self.project = DrivenCampaign(
            self.root,
            FIRST,
            in_git=self.in_git,
            max_iterations=iterations,
            performance_target=f">{goal} GB/s" if goal else None,
        )
        self.model = Model(FIRST, dict(FIRST), dict(OTHERS), iterations, goal, self.in_git)

    @rule(what=st.sampled_from(["changed", "grown", "shrunk", "put back"]))
    def edit_kernel(self, what: str) -> None:
        self._edit(what)
        TAKEN["kernel edited"] += 1

    @rule()
    def edit_another_file(self) -> None:
        self.model.others["README.md"] = self._text()
        self.project.write("README.md", self.model.others["README.md"])
        TAKEN["another file edited"] += 1

    @precondition(lambda self: self.model.harness is not None)
    @rule(back=st.sampled_from([True, True, False]))
    def edit_harness(self, back: bool) -> None:
        assert self.model.harness is not None
        self.model.others[CASES] = self.model.harness if back else self._text()
        self.project.write(CASES, self.model.others[CASES])
        TAKEN["harness put back" if back else "harness edited"] += 1

    @precondition(lambda self: {"T1", "T3"} & self.model.stops)
    @rule()
    def raise_limits(self) -> None:
        if self.model.max_iterations is not None:
            self.model.max_iterations += 5
        self.model.target = None
        self.project.edit_manifest(
            max_iterations=self.model.max_iterations, performance_target=None
        )
        TAKEN["limits raised"] += 1

    @rule(outcome=st.sampled_from(sorted(OUTCOMES)), edited=st.booleans(), by_number=st.booleans())
    def measure(self, outcome: str, edited: bool, by_number: bool) -> None:
        if edited:
            self._edit("changed")
        self._measure(outcome, Steps(self.root), by_number=by_number)

    @rule(outcome=st.sampled_from(["slower", "wrong", "equal"]), times=st.integers(2, 5))
    def go_on_the_same_way(self, outcome: str, times: int) -> None:
        for _ in range(times):
            if self.model.stops:
                return
            self._edit("changed")
            self._measure(outcome, Steps(self.root))

    @rule(outcome=st.sampled_from(sorted(OUTCOMES)))
    def measure_without_applying(self, outcome: str) -> None:
        self._measure(outcome, Steps(self.root), apply=False)

    @rule(outcome=st.sampled_from(sorted(OUTCOMES)), at=POINTS, torn=TORN)
    def measure_and_die(self, outcome: str, at: int, torn: float | None) -> None:
        self._edit("changed")
        self._measure(outcome, Steps(self.root, at, torn))

    @rule(outcome=st.sampled_from(sorted(OUTCOMES)), at=POINTS, torn=TORN)
    def die_again(self, outcome: str, at: int, torn: float | None) -> None:
        self._measure(outcome, Steps(self.root, at, torn))

    @rule(outcome=st.sampled_from(sorted(OUTCOMES)), at=POINTS)
    def edit_while_a_session_runs(self, outcome: str, at: int) -> None:
        edit = {"kernels/a.py": self._text()}

        def meddle(path: str) -> bool:
            # While a file is being replaced nobody else can get at it.
            if path.startswith(str(self.root / "kernels")):
                return False
            self.project.write("kernels/a.py", edit["kernels/a.py"])
            return True

        self._measure(outcome, Steps(self.root, at, meddle=meddle), edit=edit)

    @rule(
        outcome=st.sampled_from(sorted(OUTCOMES)), other=st.sampled_from(["round", "note", "stop"])
    )
    def meet_a_second_session(self, outcome: str, other: str) -> None:
        def rival() -> None:
            before = self._contents()
            none = Steps(self.root)
            if other == "round":
                ran = self.project.measure("next", OUTCOMES[outcome], [1.0] * 4, none)
            elif other == "note":
                ran = self.project.note(1, {"lesson": "none"}, none)
            else:
                ran = self.project.end("stopped", none)
            assert f"in use by process {os.getpid()} on" in ran.refusal, ran
            assert self._contents() == before
            TAKEN["second session refused"] += 1

        self._measure(outcome, Steps(self.root), meanwhile=rival)

    @rule(offset=st.sampled_from([-5, -2, -1, 1, 2, 50]))
    def ask_for_another_round(self, offset: int) -> None:
        asked = self.model.next_round + offset
        if asked < 1:
            return
        self._settle_first()
        before = self._contents()
        ran = self.project.measure(asked, OUTCOMES["faster"], [1.0] * 4, Steps(self.root))
        if offset < 0:
            decision = self.model.closed[asked - 1].decision
            assert f"round {asked} is already decided ({decision})" in ran.refusal
        elif self.model.harness is None:
            assert "no baseline yet" in ran.refusal
        else:
            assert f"round {asked} would skip round {self.model.next_round}" in ran.refusal
        assert self._contents() == before
        TAKEN["another round refused"] += 1

    @rule(
        offset=st.integers(-3, 1),
        key=st.sampled_from(["lesson", "extra_benefit", "tip"]),
        at=st.one_of(st.just(0), POINTS),
        torn=TORN,
    )
    def note(self, offset: int, key: str, at: int, torn: float | None) -> None:
        number = max(self.model.next_round + offset, 1)
        known = self.project.ledger()
        keys = {key: self._text().decode()} | ({"bucket": "K1"} if key == "tip" else {})
        ran = self.project.note(number, keys, Steps(self.root, at, torn))
        news = self.project.news(known)
        if ran.killed:
            self.is_shown = False
        elif number not in {*self.model.known_rounds, self.model.next_round}:
            assert f"round {number} does not exist" in ran.refusal
            assert not news
        else:
            assert [event["event"] for event in news] == ["note"] and not ran.refusal
        if news and key == "extra_benefit":
            self.model.benefits.add(number)
        TAKEN[named("note", ran)] += 1

    @rule(how=st.sampled_from(["stopped", "abandoned"]), chance=st.integers(0, 19))
    def end(self, how: str, chance: int) -> None:
        # Most histories go on.
        if chance and not self.model.ended:
            return
        known = self.project.ledger()
        ran = self.project.end(how, Steps(self.root, chance))
        news = [event["event"] for event in self.project.news(known)]
        if self.model.ended and not ran.killed:
            assert f"was {self.model.ended} already" in ran.refusal and not news
        if news:
            assert news == ["ended"]
            self.model.ended = how
        if ran.killed:
            self.is_shown = False
        TAKEN[named("end", ran)] += 1

    @invariant()
    def tree_is_as_the_rules_have_it(self) -> None:
        assert self.project.kernel() == self.model.kernel
        for path, content in self.model.others.items():
            assert (self.root / path).read_bytes() == content

    @invariant()
    def logs_only_grow(self) -> None:
        layout = self.project.layout
        tips = self.root / "agent/historical_experience/cpu/softmax/torch/tips.md"
        for path in (layout.trend, layout.optimize_log, tips):
            content = path.read_bytes() if path.exists() else b""
            assert content.startswith(self.seen.get(path, b"")), path
            self.seen[path] = content
        text = self.project.ledger()
        assert text.startswith(self.seen.get(layout.ledger, b""))
        self.seen[layout.ledger] = text

    @invariant()
    def status_is_as_the_rules_have_it(self) -> None:
        stands = (self.project.ledger(), self.project.layout.manifest.read_bytes())
        if stands == self.stood:
            return
        self.stood = stands
        model, shown = self.model, status_of(self.project.opened())
        assert shown["next_round"] == (None if model.stops else model.next_round)
        assert shown["incumbent_round"] == (model.kept[-1].round if model.kept else None)
        assert shown["ended"] == model.ended
        assert shown["unapplied"] == (model.pending.round if model.pending else None)
        assert {stop["name"] for stop in shown["termination_check"] if stop["holds"]} == model.stops
        counters = shown["counters"]
        assert counters["regressions_in_a_row"] == model.regressions
        assert counters["rollbacks_in_a_row"] == model.rollbacks_in_a_row
        assert counters["accepted"] == max(len(model.kept) - 1, 0)
        assert counters["rolled_back"] == len(model.closed) - len(model.kept)
        assert not shown["chain_breaks"]

    def teardown(self) -> None:
        shutil.rmtree(self.root.parent)

    def twin(self, left: Held | None = None) -> Histories:
        """Return a copy to go on with, or one of what a kill has left."""
        twin = type(self)()
        twin.project, twin.model = self.project.copied(twin.root, left), copy.deepcopy(self.model)
        twin.versions, twin.is_shown = self.versions, self.is_shown
        return twin

    def go_on(self, name: str, known: bytes) -> None:
        """Hold what a killed session left against the rules, and then the session after it."""
        outcome, news = OUTCOMES[name], self.project.news(known)
        self._follow(Ran(killed=name), news, outcome, self.model.rates(outcome), {})
        self.is_shown = False
        self._hold()
        self._measure(name, Steps(self.root))
        self._hold()
        self._everything_is_shown()

    def _hold(self) -> None:
        self.tree_is_as_the_rules_have_it()
        self.logs_only_grow()
        self.status_is_as_the_rules_have_it()

    def _measure(
        self,
        name: str,
        steps: Steps,
        *,
        by_number: bool = False,
        apply: bool = True,
        edit: Version | None = None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Run a session on the next round and hold what it did against the rules.

        `edit` is what `steps` writes into the kernel on the way, if it comes to it.
        """
        model, outcome = self.model, OUTCOMES[name]
        edits: Version = {}

        def cases_run() -> None:
            meanwhile()
            if outcome.touched:
                edits["kernels/b.py"] = self._text()
                with steps.aside():
                    self.project.write("kernels/b.py", edits["kernels/b.py"])

        asked = model.next_round if by_number else "next"
        known, stops, rates = self.project.ledger(), model.stops, model.rates(outcome)
        ran = self.project.measure(asked, outcome, rates, steps, apply=apply, meanwhile=cases_run)
        edits |= edit if edit and ran.meddled else {}
        news = self.project.news(known)
        looked_at = self._follow(ran, news, outcome, rates, edits)
        if ran.killed:
            self.is_shown = False
        elif stops:
            assert "no further round" in ran.refusal and not model.pending, ran
            assert all(stop in ran.refusal for stop in stops), ran
        elif ran.refusal:
            # An edit on the way comes before or after the look at the files.
            whys = {model.refusal(outcome, look) for look in (looked_at, model.kernel)}
            assert any(why and why in ran.refusal for why in whys), (ran, whys)
            assert not news_of(news) and not model.pending
        else:
            assert ran.verdict is not None, ran
            assert ran.verdict.decision == model.attempts[-1].decision == news_of(news)[-1]
            assert not model.pending
            self._everything_is_shown()
        TAKEN[named(f"round: {name}", ran)] += 1

    def _follow(
        self,
        ran: Ran,
        news: list[dict[str, Any]],
        outcome: Outcome,
        rates: tuple[float, ...],
        edits: Version,
    ) -> Version:
        """Take over the ledger's new events one by one; the tree has to have gone along.

        Return the tree's kernel files without the edits that came on the way.
        """
        model, tree, begun = self.model, self.model.kernel, False
        for event in news:
            kind = event["event"]
            if kind == "opened":
                assert event["round"] == model.next_round and not model.pending
                model.known_rounds.add(event["round"])
            elif kind == "decided":
                early = {
                    path: text
                    for path, text in edits.items()
                    if event["kernel"].get(path) == sha256(text)
                }
                edits = {path: text for path, text in edits.items() if path not in early}
                tree = tree | early
                self._decided(event, outcome, rates, tree, edited=bool(edits), early=bool(early))
            elif kind == "applying":
                begun = True
            elif kind in ("applied", "apply_waived"):
                tree = model.after_settling(tree) if kind == "applied" else tree
                if kind == "applied":
                    model.commit()
                model.pending, begun = None, False
        found = self.project.kernel()
        if begun:
            after = model.after_settling(tree)
            for path in {*found, *tree, *after}:
                assert found.get(path) in (tree.get(path), after.get(path)), (path, ran)
            tree = found
        if news and news[-1].get("restored") is not None:
            assert not list(self.root.glob("kernels/.*"))
        model.kernel = tree | edits
        assert found == model.kernel, ran
        return tree

    def _decided(
        self,
        event: dict[str, Any],
        outcome: Outcome,
        rates: tuple[float, ...],
        candidate: Version,
        *,
        edited: bool,
        early: bool,
    ) -> None:
        model = self.model
        number, decision = event["round"], event["decision"]
        if outcome.benefit:
            model.benefits.add(number)
        assert number == model.next_round and not model.refusal(outcome, candidate)
        hashes = {path: sha256(text) for path, text in candidate.items()}
        assert event["kernel"] == hashes, (event, hashes)
        legal = {model.decide(outcome, candidate, known) for known in (edited, False)}
        # Edited after the look that found the incumbent's code in it.
        legal |= {"INCOMPLETE"} if early else set()
        rates = model.kept[-1].rates if model.is_settled(candidate) else rates
        assert decision in legal, (event, legal)
        attempt = Attempt(number, event["attempt"], decision, candidate, rates)
        slower = outcome.is_regression and decision == "ROLLED_BACK"
        model.record(attempt, is_regression=slower)

    def _everything_is_shown(self) -> None:
        """Hold the files of the last round (after a death, of every round) against the rules."""
        model, layout = self.model, self.project.layout
        attempts = model.attempts if not self.is_shown else model.attempts[-1:]
        self.is_shown = True
        last = {item.round: item for item in attempts}
        for item in attempts:
            snapshot = layout.attempt(item.round, item.number) / "kernel_snapshot"
            assert files_below(snapshot, snapshot) == item.kernel
        log = layout.optimize_log.read_text()
        for item in attempts:
            assert log.count(f"<!-- round-{item.round} attempt-{item.number} -->") == 1
        for number, item in last.items():
            assert json.loads(layout.verdict(number).read_text())["decision"] == item.decision
            assert layout.summary(number).read_text()
            snapshot = layout.snapshot(number)
            assert files_below(snapshot, snapshot) == item.kernel
        rows = (
            re.findall(r"^\| (\d+) \| (\w+) \|", layout.trend.read_text(), re.MULTILINE)
            if (layout.trend.exists())
            else []
        )
        assert rows == [
            (str(item.round), TREND.get(item.decision, "ROLLBACK")) for item in model.closed
        ]
        for item in model.closed:
            memory = json.loads(layout.memory(item.round - 1).read_text())
            assert memory["quality_gate"]["result"] == (
                "PASS" if item.decision in KEEPS else "FAIL"
            )
        if self.in_git:
            self._repository_is_right()
        events = ledger.read(layout.ledger)
        assert fold(events) == self.project.opened().state

    def _repository_is_right(self) -> None:
        """Every accepted version is one commit of kernel files, and nothing else was touched."""
        git = self.project.git
        commits = git("log", "--format=%s", "--grep", "^.optimize.").splitlines()
        numbers = [re.findall(r"round-(\d+):", text)[0] for text in commits]
        wanted = [str(item.round) for item in self.model.committed]
        assert numbers[::-1] == wanted, (numbers, self.model.committed)
        if self.model.committed:
            names = git("ls-tree", "-r", "--name-only", "HEAD", "kernels").split()
            kept = {name: git("show", f"HEAD:{name}").encode() for name in names}
            assert kept == self.model.committed[-1].kernel
        status = git("status", "--porcelain", "-uall", "--", "staged.py", "untracked.txt")
        assert status.splitlines() == ["A  staged.py", "?? untracked.txt"]
        git("fsck", "--no-dangling")

    def _settle_first(self) -> None:
        if self.model.pending or not self.is_shown:
            self._measure("interrupted", Steps(self.root))

    def _edit(self, what: str) -> None:
        tree = dict(self.model.kernel)
        if what == "put back" and self.model.kept:
            wanted = self.model.kept[-1].kernel
            tree = dict(wanted)
        elif what == "shrunk":
            tree.pop("kernels/b.py", None)
        else:
            tree["kernels/b.py" if what == "grown" else "kernels/a.py"] = self._text()
        for path in {*tree, *self.model.kernel}:
            if tree.get(path) != self.model.kernel.get(path):
                self.project.write(path, tree.get(path))
        self.model.kernel = tree

    def _text(self) -> bytes:
        self.versions += 1
        return f"VERSION = {self.versions}\n".encode()

    def _contents(self) -> Version:
        return {
            path.relative_to(self.root).as_posix(): path.read_bytes()
            for path in self.root.rglob("*")
            if path.is_file()
            # Whoever polls reads in running.json how a refused session ended.
            and not path.name.startswith((".lock", "running.json"))
            and ".git" not in path.parts
        }


class HistoriesInGit(Histories):
    """Campaigns in a repository, with work of the user's staged and untracked beside the kernel."""

    in_git = True

    def _edit(self, what: str) -> None:
        """Edit the kernel; a campaign begins with one that is committed (E7)."""
        super()._edit(what)
        if not self.model.kept and self.model.kernel != self.model.first:
            self.project.git("add", "kernels")
            self.project.git("commit", "--quiet", "-m", "Edit", "--", "kernels")
            self.model.first = dict(self.model.kernel)


TREND = {"BASELINE": "BASELINE", "ACCEPTED": "ACCEPTED", "ACCEPTED_WITH_NOTE": "ACCEPTED"}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def news_of(events: list[dict[str, Any]]) -> list[str]:
    return [event["decision"] for event in events if event["event"] == "decided"]


def named(what: str, ran: Ran) -> str:
    """Return what is counted for a step that went like this."""
    if ran.killed:
        return f"{what}, killed"
    return f"{what}, refused" if ran.refusal else what


def play(machine: type[Histories], steps: int, length: int = 40) -> None:
    """Take at least so many steps, in histories of this length at most."""
    most = settings(
        stateful_step_count=length,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    begin = TAKEN.total()
    with made_quick(in_git=machine.in_git):
        while (left := begin + steps - TAKEN.total()) > 0:
            examples = settings(most, max_examples=min(max(left // length, 1), 200))
            run_state_machine_as_test(machine, settings=examples)


def begun_with(machine: type[Histories], outcome: str) -> Histories:
    """Return a campaign whose next session has this outcome: `baseline`, or a candidate's."""
    begun = machine()
    begun.start(iterations=None, goal=None)
    if outcome != "equal":
        begun.measure("equal", edited=False, by_number=True)
        begun.edit_kernel("changed")
        begun.edit_kernel("grown")
    return begun


def recorded(begun: Histories, outcome: str) -> Recording:
    """Return the recording of a session after this beginning."""
    listed = begun.twin()
    recording = Recording(listed.root)
    listed._measure(outcome, recording.steps)
    recording.look()
    listed.teardown()
    return recording


def names_in(contents: Held) -> set[str]:
    """Return what is held but git's objects, temporary files without what chance names them."""
    names = {re.sub(r"\.\w{8}(?=\.tmp$|/|$)", "", name) for name in contents}
    return {name for name in names if not name.startswith(".git/objects/")}


def die(path: str) -> bool:
    os.kill(os.getpid(), signal.SIGKILL)
    return True


@pytest.mark.parametrize(
    ("machine", "outcome"),
    [
        (Histories, "faster"),
        (Histories, "slower"),
        pytest.param(Histories, "equal", marks=pytest.mark.long),
        pytest.param(HistoriesInGit, "equal", marks=pytest.mark.long),
        pytest.param(HistoriesInGit, "faster", marks=pytest.mark.long),
        pytest.param(HistoriesInGit, "slower", marks=pytest.mark.long),
    ],
)
def test_every_kill(machine: type[Histories], outcome: str) -> None:
    """Whatever a kill leaves between two steps on disk or within one, the next session goes on."""
    with made_quick(in_git=machine.in_git):
        begun = begun_with(machine, outcome)
        known = begun.project.ledger()
        recording = recorded(begun, outcome)
        deaths = recording.deaths()
        assert len(deaths) > 60 and recording.steps.count > 40
        if outcome == "slower":
            # Until it is decided, a slower version's session leaves what a faster one's leaves.
            ledger = begun.project.layout.ledger.relative_to(begun.root).as_posix()
            before = recording.moments[0][ledger]
            deaths = [left for left in deaths if left[ledger] != before]
            assert len(deaths) > 20
        for left in deaths:
            twin = begun.twin(left)
            twin.go_on(outcome, known)
            twin.teardown()
        begun.teardown()


def test_a_kill_of_each_kind_of_step_leaves_what_was_recorded() -> None:
    """The system's own SIGKILL: what is replayed above is what it leaves."""
    with made_quick(in_git=True):
        begun = begun_with(HistoriesInGit, "faster")
        known = begun.project.ledger()
        recording = recorded(begun, "faster")
        kinds = recording.steps.kinds
        assert {*kinds} == {"open", "fsync", "os.rename", "os.remove", "os.mkdir", "git"}
        for kind in {*kinds}:
            at = [i for i, it in enumerate(kinds, start=1) if it == kind][kinds.count(kind) // 2]
            twin = begun.twin()
            pid = os.fork()
            if pid == 0:
                try:
                    twin._measure("faster", Steps(twin.root, at, meddle=die))
                finally:
                    os._exit(1)
            assert os.waitpid(pid, 0)[1] == signal.SIGKILL, kind
            assert names_in(held(twin.root)) == names_in(recording.moments[at - 1]), kind
            twin.go_on("faster", known)
            twin.teardown()
        begun.teardown()


def test_histories() -> None:
    """A sample of the long test below."""
    play(Histories, 150)


@pytest.mark.long
def test_long_histories() -> None:
    """STATEFUL_STEPS and STATEFUL_GIT_STEPS ask for more; every kind of step is counted."""
    TAKEN.clear()
    try:
        play(Histories, int(os.environ.get("STATEFUL_STEPS", "4000")))
        play(HistoriesInGit, int(os.environ.get("STATEFUL_GIT_STEPS", "200")))
    finally:
        print(f"{TAKEN.total()} steps", *sorted(TAKEN.items()), sep="\n")
