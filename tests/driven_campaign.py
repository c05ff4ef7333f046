"""A campaign whose sessions run in this process: everything a round does but pytest and timing."""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import gc
import io
import json
import marshal
import math
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from pytest_kopt import documents
from pytest_kopt.campaign import ledger
from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.cases.evidence import CaseEvidence
from pytest_kopt.cases.result import CaseResult, Collector
from pytest_kopt.cli import campaigns
from pytest_kopt.cli.command_line import Command
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.devices.idle import AllGpusBusy
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.options.project import Project
from pytest_kopt.options.settings import Settings
from pytest_kopt.profiling.kernel_table import CaseProfile, KernelRow
from pytest_kopt.show.progress import Progress
from pytest_kopt.trials.harness import PytestSetup
from pytest_kopt.trials.opening import open_trial
from tests.builders import manifest_document
from tests.crash import Held, Killed, Recording, Steps, lay_out, watched
from tests.model_campaign import OUTCOMES, Outcome, Version

NAME = "c"
CASES = "tests/test_a.py"
#: Those of the baseline in most tests.
RATES = (100.0, 200.0, 300.0, 400.0)
OTHERS = {CASES: b"# the harness\n", "README.md": b"A project.\n"}
_HEADER = (
    "label,kind,rows,Check,Forward GB/s,Forward GB/s_stddev,Backward GB/s,Backward GB/s_stddev,"
    "Forward Time (ms),Backward Time (ms),out_snr,grad_snr"
)
_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(
        (
            "base",
            "rebuild_command",
            "summary_csv",
            "calibrate",
            "level",
            "verdict_path",
        )
    ),
    **dict.fromkeys(("verdict_path", "notes", "policy", "seed", "repeats", "iterations")),
    "campaign": NAME,
    "csv_is_folder": False,
    "allow_removed": False,
    "measure_same": False,
    "isolates": False,
    "candidates": (),
    "check_only": False,
    "sanitize": (),
    "gate": "no-regression",
    "compare": "stored",
    "engine": "auto",
    "device": "cpu",
    "gpu_wait": 0.0,
    "timeout": 1.0,
    "profile": False,
    "suite": "standard",
}


@dataclass(slots=True)
class Ran:
    """How a session went: a verdict, a refusal, or a death; or else none of them (a command)."""

    verdict: Verdict | None = None
    refusal: str = ""
    killed: str = ""
    meddled: str = ""


@dataclass(slots=True)
class Measurements:
    """Measures again what it is told to."""

    runs: list[list[CaseResult]] = field(default_factory=list)
    progress: Progress = field(default_factory=lambda: Progress(None))

    def measure_again(self) -> Sequence[CaseResult]:
        return self.runs.pop(0)

    def profile(self, ids: Sequence[str], *, vendor: bool) -> list[CaseProfile]:
        rows = (KernelRow("hot", 1, 100.0),)
        return [CaseProfile(name, name, "torch.profiler", "gpu", 1, rows) for name in ids]


class DrivenCampaign:
    """A project with one campaign: a kernel directory, a test file, and a file besides."""

    def __init__(self, root: Path, kernel: Version, *, in_git: bool, **manifest: Any) -> None:
        self.root = root
        self.layout = Layout(root / "agent" / "workspace" / NAME)
        self.in_git = in_git
        for path, content in {**OTHERS, **kernel}.items():
            self.write(path, content)
        document = manifest_document(
            target_backend="TORCH",
            target_gpu="cpu",
            kernel_source=["kernels"],
            classes=["kind"],
            primary_metric="Forward GB/s",
            git_commit=in_git,
            **manifest,
        )
        manifests.save(self.layout.manifest, Manifest.model_validate(document))
        if in_git:
            self.git("init", "--quiet", "--initial-branch", "main")
            (root / ".git/info/exclude").write_text("/agent/\n")
            self.git("add", ".")
            self.git("commit", "--quiet", "-m", "Start")
            self.write("staged.py", b"ANSWER = 42\n")
            self.git("add", "staged.py")
            self.write("untracked.txt", b"mine\n")

    def copied(self, root: Path, left: Held | None = None) -> DrivenCampaign:
        """Return a copy to go on with, or one of what a kill has left."""
        if left is None:
            shutil.copytree(self.root, root)
        else:
            lay_out(left, root)
        twin = copy.copy(self)
        twin.root, twin.layout = root, Layout(root / "agent" / "workspace" / NAME)
        return twin

    def deaths(
        self, root: Path, session: Callable[[DrivenCampaign, Steps], Ran]
    ) -> Iterator[DrivenCampaign]:
        """Yield a copy as each kill of this session leaves it."""
        recording = Recording(root / "recorded")
        assert not session(self.copied(recording.root), recording.steps).refusal
        recording.look()
        for at, left in enumerate(recording.deaths()):
            yield self.copied(root / str(at), left)

    def git(self, *words: str) -> str:
        """Run git and return what it prints."""
        who = ("-c", "user.name=tests", "-c", "user.email=tests@localhost")
        done = subprocess.run(
            ["git", *who, *words], cwd=self.root, check=True, capture_output=True, text=True
        )
        return done.stdout

    def write(self, path: str, content: bytes | None) -> None:
        """Write a file below the root as a user would; None removes it."""
        file = self.root / path
        if content is None:
            file.unlink()
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)

    def kernel(self) -> Version:
        """Return the kernel files in the tree."""
        found = files_below(self.root / "kernels", self.root)
        return {path: text for path, text in found.items() if not path.endswith(".kopt-new")}

    def opened(self) -> Campaign:
        """Return the campaign as a new process finds it."""
        return Campaign(self.layout, self.root)

    def news(self, known: bytes) -> list[dict[str, Any]]:
        """Return the complete lines that the ledger has beyond what was known."""
        text = self.ledger()
        assert text.startswith(known)
        return [json.loads(line) for line in text[len(known) :].split(b"\n")[:-1]]

    def ledger(self) -> bytes:
        """Return the ledger's bytes; a torn last line never happened."""
        text = self.layout.ledger.read_bytes() if self.layout.ledger.exists() else b""
        return text[: text.rfind(b"\n") + 1]

    def edit_manifest(self, **keys: Any) -> None:
        """Change keys of the manifest as a user would."""
        manifest = manifests.load(self.layout.manifest)
        manifests.save(self.layout.manifest, manifest.model_copy(update=keys))

    def play(self, outcome: str, **more: Any) -> Ran:
        """Run the next round with rates as this outcome has them against the baseline's."""
        factors = OUTCOMES[outcome].factors
        rates = [rate * factor for rate, factor in zip(RATES, factors, strict=True)]
        return self.measure("next", OUTCOMES[outcome], rates, Steps(self.root), **more)

    def measure(
        self,
        asked: int | str,
        outcome: Outcome,
        rates: Sequence[float],
        steps: Steps,
        *,
        apply: bool = True,
        meanwhile: Callable[[], None] = lambda: None,
        policy: str | None = None,
    ) -> Ran:
        """Run a round's session; `meanwhile` happens while its cases run."""
        notes = None
        if outcome.benefit:
            notes = self.root.with_name("notes.yaml")
            notes.write_text("extra_benefit: easier to read\n")
        settings = Settings(
            root=self.root,
            workspace=self.layout.directory.parent,
            round=asked,  # type: ignore[arg-type]
            apply=apply,
            **{**_SETTINGS, "notes": notes, "policy": policy},
        )
        return self._run(steps, lambda: _session(settings, outcome, rates, meanwhile))

    def find_no_idle_gpu(self, found: AllGpusBusy, steps: Steps) -> Ran:
        """Run a session that ends before anything is measured, since no GPU is idle."""
        settings = Settings(
            root=self.root,
            workspace=self.layout.directory.parent,
            round="next",
            apply=True,
            **_SETTINGS,
        )

        def session() -> None:
            trial = open_trial(settings, PytestSetup({}, (), ()))
            try:
                trial.no_idle_gpu(found)
            finally:
                trial.release()

        return self._run(steps, session)

    def note(self, number: int, keys: Mapping[str, str], steps: Steps) -> Ran:
        """Run `kopt note`."""
        file = self.root.with_name("notes.yaml")
        file.write_text(json.dumps(keys))
        arguments = argparse.Namespace(name=NAME, round=number, file=file)
        return self._command(steps, campaigns.note, arguments)

    def restore(self, number: int, steps: Steps) -> Ran:
        """Run `kopt restore`."""
        return self._command(steps, campaigns.restore, argparse.Namespace(name=NAME, round=number))

    def discard(self, steps: Steps) -> Ran:
        """Run `kopt discard`."""
        return self._command(steps, campaigns.discard, argparse.Namespace(name=NAME))

    def end(self, how: str, steps: Steps) -> Ran:
        """Run `kopt stop` or `kopt abandon`."""
        ending = campaigns.stop if how == "stopped" else campaigns.abandon
        return self._command(steps, ending, argparse.Namespace(name=NAME))

    def _command(self, steps: Steps, command: Command, given: argparse.Namespace) -> Ran:
        def called() -> None:
            here = Project(self.root, self.layout.directory.parent)
            with (
                mock.patch.object(Project, "here", return_value=here),
                contextlib.redirect_stdout(io.StringIO()),
            ):
                assert command.run is not None and not command.run(given)

        return self._run(steps, called)

    def _run(self, steps: Steps, run: Callable[[], Verdict | None]) -> Ran:
        ran = Ran()
        with watched(steps):
            try:
                ran.verdict = run()
            except BadInput as refusal:
                ran.refusal = str(refusal)
            except Killed as death:
                ran.killed = str(death)
        if ".lock-owner" in ran.killed:
            # Killed on the way to giving the lock back, which the end of a process does.
            gc.collect()
        ran.meddled = "" if steps.dead else steps.what
        return ran


def _session(
    settings: Settings,
    outcome: Outcome,
    rates: Sequence[float],
    meanwhile: Callable[[], None],
) -> Verdict:
    """Do what the controller does with a trial from the first hook to the last."""
    trial = open_trial(settings, PytestSetup({}, (), ()))
    try:
        trial.begin()
        collector = Collector()
        trial.check_collection([_nodeid(i) for i in range(4)], collector, False)
        collector.collected([_nodeid(i) for i in range(4)])
        meanwhile()
        found = results(outcome, rates)
        collector.results = {result.nodeid: result for result in found}
        measurements = Measurements(
            [
                results(outcome, [rate * factor / outcome.factors[0] for rate in rates])
                for factor in outcome.again
            ]
        )
        interrupted = "Ctrl-C" if outcome.interrupted else ""
        closing = trial.close(collector, measurements, interrupted)  # type: ignore[arg-type]
        return closing.verdict
    finally:
        trial.release()


def results(outcome: Outcome, rates: Sequence[float]) -> list[CaseResult]:
    """Return what the workers send for this outcome."""
    found = []
    for i, rate in enumerate(rates):
        bad = i == 1
        check = outcome.check if bad else "PASS"
        shown = math.nan if bad and (outcome.unmeasured or check != "PASS") else rate
        found.append(
            CaseResult(
                nodeid=_nodeid(i),
                label=f"case{i}",
                header=tuple(_HEADER.split(",")),
                dims={"kind": i // 2, "rows": i},
                check=check,  # type: ignore[arg-type]
                cells={
                    "Forward GB/s": shown,
                    "Forward GB/s_stddev": 0.1,
                    "Forward Time (ms)": 1.0 / shown,
                    "out_snr": 40.0,
                },
                evidence=CaseEvidence(engine="wall", domain=outcome.domain or None),
                findings=(Finding(outcome.finding, "seen by a check of honesty"),)
                if bad and outcome.finding
                else (),
            )
        )
    return found[:-1] if outcome.missing else found


def files_below(directory: Path, root: Path) -> Version:
    """Return the files below a directory by their path below `root`, but how a session ended."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "running.json"
    }


def _nodeid(place: int) -> str:
    return f"{CASES}::test[{place}]"


class _Adapter:
    """Reads a ledger's lines, each of them once."""

    validate_json = staticmethod(functools.lru_cache(maxsize=5000)(ledger._ADAPTER.validate_json))


@contextlib.contextmanager
def made_quick(*, in_git: bool) -> Iterator[None]:
    """Spare sessions what takes most of their time: reading the same texts, looking for git."""

    def parsed(text: str, where: str) -> Any:
        if text not in known:
            known[text] = marshal.dumps(parse_yaml(text, where))
        return marshal.loads(known[text])

    parse_yaml = documents.parse_yaml
    known: dict[str, bytes] = {}
    with (
        mock.patch.object(documents, "parse_yaml", parsed),
        mock.patch.object(ledger, "_ADAPTER", _Adapter),
        contextlib.nullcontext()
        if in_git
        else mock.patch.object(Repository, "around", return_value=None),
    ):
        yield
