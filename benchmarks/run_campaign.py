"""Run a campaign of `campaigns/` with nothing but the plugin, and collect what it leaves.

python benchmarks/run_campaign.py NAME OUT [--limit-minutes M] [--workers N] [--device cpu]

Makes the project in a git repository of its own in OUT/project, then: `kopt init`, the baseline, a
round for every step (repairs included), `kopt note`, the final comparison and `kopt report`.
Whatever a verdict says the next step starts from what was kept: a step's edits are written down
beforehand, and apply to the version that was kept last. Run the same command again to go on
where it stopped. OUT/campaign holds the campaign, OUT/progress.json each session with its seconds.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

CAMPAIGNS = Path(__file__).parent / "campaigns"
#: The state of a session that runs; no record of the campaign.
_SESSION = (".lock", ".shown", "running.json", "running.log", "__pycache__")
_KEPT = ("ACCEPTED", "ACCEPTED_WITH_NOTE")
_OPEN = ("REPAIR", "INCOMPLETE")
#: A session that could not decide is run so often in all.
_TRIES = 2
_NO_IDLE_GPU = 10


class NotApplicable(Exception):
    """An edit does not fit the kernel as it is; says which."""


@dataclass(frozen=True, slots=True)
class Step:
    """One hypothesis.

    `attempts` are lists of edits: the candidate, then its repairs, each on top of the one before.
    `needs` are steps that have to have been kept, `resolves` one that has to have ended SPLIT: what
    it gained is dispatched to the cases that have it. `notes` go with the round; `kept` and `lost`
    are added after it, as its outcome is; the lesson and `tip` make the round's tip.
    """

    name: str
    notes: dict[str, Any]
    attempts: tuple[Sequence[Mapping[str, str]], ...]
    needs: tuple[str, ...] = ()
    resolves: str = ""
    kept: dict[str, str] = field(default_factory=dict)
    lost: dict[str, str] = field(default_factory=dict)
    tip: tuple[str, ...] = ()

    def afterwards(self, kept: bool) -> dict[str, str]:
        """Return the notes to add when the round is over."""
        found = dict(self.kept if kept else self.lost)
        if "lesson" in found and self.tip:
            found["tip"] = f"{found['lesson']} ({'; '.join(self.tip)})"
        return found


@dataclass(frozen=True, slots=True)
class Plan:
    """A campaign as it is written down: its project, its settings and its steps in order."""

    name: str
    directory: Path
    settings: dict[str, Any]
    steps: tuple[Step, ...]

    @property
    def kernel(self) -> str:
        """The kernel file's path in the project."""
        return str(self.settings["kernel"])

    def source(self) -> str:
        """Return the baseline's kernel."""
        return (self.directory / self.kernel).read_text()


def names() -> list[str]:
    """Return the campaigns there are."""
    return sorted(path.parent.name for path in CAMPAIGNS.glob("*/campaign.yaml"))


def load(name: str, campaigns: Path = CAMPAIGNS) -> Plan:
    """Read a campaign."""
    directory = campaigns / name
    settings = yaml.safe_load((directory / "campaign.yaml").read_text())
    steps = tuple(_step(path) for path in sorted((directory / "steps").glob("*.yaml")))
    return Plan(name, directory, settings, steps)


def _step(path: Path) -> Step:
    text = yaml.safe_load(path.read_text())
    return Step(
        name=path.stem,
        notes=text["notes"],
        attempts=(text["edits"], *text.get("repairs", ())),
        needs=tuple(text.get("needs", ())),
        resolves=text.get("resolves", ""),
        kept=text.get("kept", {}),
        lost=text.get("lost", {}),
        tip=tuple(text[key] for key in ("context", "applicability") if key in text),
    )


def edited(source: str, edits: Iterable[Mapping[str, str]]) -> str:
    """Return a kernel with edits applied in order.

    `replace` TEXT `with` TEXT: the text stands there exactly once. `define` NAME `as` SOURCE:
    instead of that top-level definition. `insert` SOURCE `before` NAME. `remove` NAME.
    Raises NotApplicable.
    """
    for edit in edits:
        source = _edited(source, edit)
    return source


def _edited(source: str, edit: Mapping[str, str]) -> str:
    if "replace" in edit:
        old = edit["replace"]
        if source.count(old) != 1:
            raise NotApplicable(f"{old!r} stands {source.count(old)} times in the kernel")
        return source.replace(old, edit["with"])
    if "define" in edit:
        start, end = _span(source, edit["define"])
        return source[:start] + edit["as"].rstrip("\n") + "\n" + source[end:]
    if "insert" in edit:
        start, _ = _span(source, edit["before"])
        return source[:start] + edit["insert"].rstrip("\n") + "\n\n\n" + source[start:]
    start, end = _span(source, edit["remove"])
    return source[:start] + source[end:].lstrip("\n")


def _span(source: str, name: str) -> tuple[int, int]:
    """Return where a top-level function, class or constant begins (its decorators) and ends."""
    lines = source.splitlines(keepends=True)
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            first = min([node.lineno, *(item.lineno for item in node.decorator_list)])
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name:
            first = node.lineno
        else:
            continue
        assert node.end_lineno is not None
        return sum(map(len, lines[: first - 1])), sum(map(len, lines[: node.end_lineno]))
    raise NotApplicable(f"{name} is not defined in the kernel")


class OutOfTime(Exception):
    """The next session might not end within the limit."""


class Refused(Exception):
    """A session ended without a verdict; holds the last lines that it printed."""


class Runner:
    """One campaign in one directory."""

    def __init__(self, plan: Plan, out: Path, asked: argparse.Namespace) -> None:
        self.plan, self.out, self._asked = plan, out.resolve(), asked
        self.root = self.out / "project"
        self._began = time.monotonic()
        self._record = self.out / "progress.json"
        known = json.loads(self._record.read_text()) if self._record.exists() else {}
        self.progress: dict[str, Any] = {"sessions": [], "steps": {}, **known}
        self.campaign = self.root / "agent/workspace" / plan.name

    def run(self) -> None:
        """Go on where the last run stopped, as far as time allows."""
        try:
            if not self.campaign.exists():
                self._make()
            if self.status()["incumbent_round"] is None:
                self._session("baseline", "1")
            if self.status()["incumbent_round"] is None:
                sys.exit(f"there is no baseline; see {self.out / 'sessions'}")
            for step in self.plan.steps:
                if self.progress["steps"].get(step.name, {}).get("over"):
                    continue
                if self.status()["next_round"] is None:
                    print(f"the campaign has ended: {self.status()['next']}", flush=True)
                    break
                try:
                    self._play(step)
                except Refused as why:
                    self._write(self._base())
                    self._skip(self.progress["steps"][step.name], f"refused: {why}")
            self._finish()
        except (OutOfTime, Refused) as why:
            print(f"stopped: {why}; the same command goes on", flush=True)
        finally:
            self._save()
            self._collect()

    def status(self) -> dict[str, Any]:
        """Return `kopt status --json`."""
        done = self._call("-m", "pytest_kopt.cli", "status", self.plan.name, "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def _make(self) -> None:
        settings = self.plan.settings
        beside = shutil.ignore_patterns("steps", "campaign.yaml", "__pycache__")
        shutil.copytree(self.plan.directory, self.root, ignore=beside)
        for words in (
            ("init", "--quiet", "--initial-branch", "main"),
            ("config", "user.name", "kopt campaign"),
            ("config", "user.email", "campaign@localhost"),
            ("add", "."),
            ("commit", "--quiet", "-m", f"Start with a plain {settings['op']}"),
        ):
            subprocess.run(["git", *words], cwd=self.root, check=True)
        asked = ["init", self.plan.name, "--op", settings["op"], "--kernel", self.plan.kernel]
        asked += ["--backend", settings["backend"], "--gpu", self._asked.gpu]
        asked += ["--tests", settings["tests"]]
        for key in ("target", "classes"):
            asked += [f"--{key}", settings[key]] if key in settings else []
        self._call("-m", "pytest_kopt.cli", *asked)
        if self._asked.gpu != "cpu":
            # Rooflines take what this card reaches, not what its data sheet says.
            print(self._call("-m", "pytest_kopt.cli", "calibrate", "--ceilings").stdout, flush=True)

    def _play(self, step: Step) -> None:
        """Run a step's round: the candidate, its repairs, and once more what could not decide."""
        here = self.progress["steps"].setdefault(step.name, {})
        unmet = [name for name in step.needs if not self._was_kept(name)]
        if unmet:
            return self._skip(here, f"needs {', '.join(unmet)}, which was not kept")
        if step.resolves and self._ended(step.resolves) != "SPLIT":
            return self._skip(here, f"resolves {step.resolves}, which did not split")
        candidate, decision, number = self._base(), "", 0
        failed = here.get("decisions", []).count("REPAIR")
        for place, edits in enumerate(step.attempts):
            try:
                candidate = edited(candidate, edits)
            except NotApplicable as why:
                if not decision:
                    return self._skip(here, str(why))
                break
            if place < failed:
                # It was run before this command was started again.
                decision = "REPAIR"
                continue
            for _ in range(_TRIES):
                self._write(candidate)
                verdict = self._session(step.name, "next", *self._notes(step))
                decision, number = verdict["decision"], verdict["round"]
                here.setdefault("decisions", []).append(decision)
                if decision != "INCOMPLETE":
                    break
            if decision != "REPAIR":
                break
        if decision in _OPEN:
            # The hypothesis is given up: its round ends with what was kept before.
            self._call("-m", "pytest_kopt.cli", "discard", self.plan.name)
            decision = "ROLLED_BACK"
            here["decisions"].append(decision)
            print(f"{step.name}, given up: {decision}", flush=True)
        more = step.afterwards(decision in _KEPT)
        if more and decision not in _OPEN:
            (self.out / "more.yaml").write_text(yaml.safe_dump(more))
            self._call("-m", "pytest_kopt.cli", "note", self.plan.name, str(number),
                       str(self.out / "more.yaml"))  # fmt: skip
        here |= {"over": True, "round": number, "decision": decision}
        self._save()
        return None

    def _finish(self) -> None:
        best = self.status()["incumbent_round"]
        if best and best > 1 and self.progress.get("final") != best:
            self._write(self._base())
            self._session("final", "final")
            self.progress["final"] = best
            self._save()

    def _session(self, what: str, round: str, *words: str) -> dict[str, Any]:
        """Run pytest for a round; return its verdict. Raises Refused where there is none."""
        # The final comparison is to fit in as well.
        self._mind_the_time(1 if round == "final" else 2)
        (self.out / "verdict.json").unlink(missing_ok=True)
        # With "=": a path after a space is one of tests to pytest, and moves its root directory.
        words += (f"--kopt-verdict={self.out / 'verdict.json'}",)
        words += ("-n", str(self._asked.workers)) if self._asked.workers else ()
        words += ("--kopt-device", self._asked.device) if self._asked.device else ()
        words += (
            () if self._asked.gpu == "cpu" else ("--kopt-gpu-wait", "2", "--kopt-timeout", "120")
        )
        start = time.monotonic()
        done = self._call(
            *("-m", "pytest", "-p", "no:cacheprovider", "--kopt-campaign", self.plan.name),
            *("--kopt-round", round, *words),
            check=False,
        )
        seconds = float(f"{time.monotonic() - start:.1f}")
        logs = self.out / "sessions"
        logs.mkdir(exist_ok=True)
        log = logs / f"{len(self.progress['sessions']):02d}-{what.replace(', ', '-')}.txt"
        log.write_text(done.stdout + done.stderr)
        if not (self.out / "verdict.json").exists():
            if done.returncode == _NO_IDLE_GPU:
                sys.exit("no idle GPU; the same command goes on")
            last = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
            raise Refused(f"{what}: pytest ended with {done.returncode}, see {log}\n{last}")
        verdict: dict[str, Any] = json.loads((self.out / "verdict.json").read_text())
        change = (verdict.get("aggregate") or {}).get("change_pct")
        entry = {
            "what": what,
            "round": verdict["round"],
            "decision": verdict["decision"],
            "change_pct": change,
            "exit": done.returncode,
            "seconds": seconds,
        }
        self.progress["sessions"].append(entry)
        self._save()
        shown = "" if change is None else f" {change:+.3f} %"
        print(f"{what}: {verdict['decision']}{shown}, {seconds} s: {verdict['reason']}", flush=True)
        return verdict

    def _mind_the_time(self, sessions: int) -> None:
        limit = self._asked.limit_minutes
        longest = max((entry["seconds"] for entry in self.progress["sessions"]), default=60.0)
        spent = time.monotonic() - self._began
        if limit is not None and spent + sessions * longest > limit * 60:
            raise OutOfTime(f"{spent:.0f} s of {limit * 60:.0f} s are spent")

    def _notes(self, step: Step) -> tuple[str, ...]:
        notes = dict(step.notes)
        if "target_class" in notes:
            where = "cpu" if self._asked.gpu == "cpu" else "gpu"
            notes["target_class"] = self.plan.settings["target_classes"][notes["target_class"]][
                where
            ]
        path = self.out / "notes.yaml"
        path.write_text(yaml.safe_dump(notes))
        return (f"--kopt-notes={path}",)

    def _was_kept(self, name: str) -> bool:
        return self._ended(name) in _KEPT

    def _ended(self, name: str) -> str | None:
        decision: str | None = self.progress["steps"].get(name, {}).get("decision")
        return decision

    def _skip(self, here: dict[str, Any], why: str) -> None:
        print(f"left out: {why}", flush=True)
        here |= {"over": True, "left_out": why}
        self._save()

    def _base(self) -> str:
        """Return what the next step starts from: the version that was kept last."""
        number = self.status()["incumbent_round"]
        return (
            self.campaign / f"rounds/round-{number}/kernel_snapshot" / self.plan.kernel
        ).read_text()

    def _write(self, kernel: str) -> None:
        (self.root / self.plan.kernel).write_text(kernel)

    def _save(self) -> None:
        self._record.write_text(json.dumps(self.progress, indent=1) + "\n")

    def _collect(self) -> None:
        """Copy the whole campaign to OUT/campaign, with its tips and its report."""
        target = self.out / "campaign"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.campaign, target, ignore=shutil.ignore_patterns(*_SESSION))
        for tips in self.root.glob("agent/historical_experience/*/*/*/tips.md"):
            shutil.copy2(tips, target / "tips.md")
        self._call("-m", "pytest_kopt.cli", "report", self.plan.name, "-o",
                   str(target / "report.html"), check=False)  # fmt: skip

    def _call(self, *words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        environment = {key: text for key, text in os.environ.items() if key != "PYTEST_ADDOPTS"}
        done = subprocess.run(
            [sys.executable, *words],
            cwd=self.root,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode:
            sys.exit(f"{' '.join(words)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
        return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=names())
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit-minutes", type=float, help="start no session that might end later")
    parser.add_argument("--workers", type=int, help="pytest -n")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), help="default: the GPU where there is one"
    )
    parser.add_argument("--gpu", help="the campaign's GPU (default H200, cpu with --device cpu)")
    asked = parser.parse_args()
    asked.gpu = asked.gpu or ("cpu" if asked.device == "cpu" else "H200")
    asked.out.mkdir(parents=True, exist_ok=True)
    Runner(load(asked.name), asked.out, asked).run()


if __name__ == "__main__":
    main()
