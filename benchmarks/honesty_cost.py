"""What checks of honesty cost: a round of five cases with them and without some of them.

python benchmarks/honesty_cost.py OUT [--device cpu|cuda] [--pairs N] [--without GROUP ...]

Both kinds of round are whole pytest runs of the same project, from start to exit: a faster
candidate is checked, timed and compared with its incumbent in fresh processes. There is no option
that leaves checks out. A plugin of this script's does so in every process of one kind of round.
--without may be repeated:

    exact      inputs near the declared ones: small integers, whose result is exact
    bits       hundreds of equal calls, compared bit by bit
    patterns   inputs near the declared ones: gaps, transposed and expanded views, no rows, counts
               of zero, masks that keep nothing, NaN in padding, a result that goes into an input,
               other numbers and indices
    all        all dynamic checks (default): of a check the comparison with the reference on fresh
               inputs is left, and no further contents, training loop, new content for timed calls,
               looks at timed results, verifier, isolation, nearby shapes, audit or time
               alone

The two kinds take turns, each time in a copy of a project whose baseline was measured in the same
way; the first pair does not count. A pair takes half a minute. Writes OUT/honesty_cost_DEVICE.json
and .md, with the names of groups but `all` behind the device.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_report import Report, run

#: Percent of a round that all dynamic checks may take, and that some groups may.
ASKED_PCT, ASKED_OF_GROUPS_PCT = 15.0, 10.0
CASES_OF_A_ROUND = 5
CAMPAIGN = "cost"

SETTINGS = """\
[tool.pytest.ini_options]
pythonpath = ["."]
testpaths = ["tests"]
"""
UNBOUND = 'kopt_isolation = "off"\n'
BASELINE = """\
import torch


def rmsnorm(x, weight):
    mean = x.pow(2).sum(-1, keepdim=True) / x.shape[-1]
    root = torch.sqrt(mean + 1e-6)
    return (x / root.expand_as(x).contiguous()) * weight.expand_as(x).contiguous()
"""
CANDIDATE = """\
import torch


def rmsnorm(x, weight):
    return torch.nn.functional.rms_norm(x, weight.shape, weight, 1e-6)
"""
CASES = """\
import pytest
import torch
from kernels.rmsnorm import rmsnorm

SCALE = {scale}


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize(
    "rows, hidden", [(128, 512), (256, 512), (256, 1024), (512, 768), (384, 1024)]
)
def test_rmsnorm(kopt, rows, hidden):
    rows, hidden = SCALE * rows, SCALE * hidden

    def draw(*shape):
        return torch.randn(*shape, device=kopt.device)

    kopt(
        rmsnorm,
        inputs=lambda: (draw(rows, hidden), draw(hidden)),
        reference=lambda x, w: x.double()
        * torch.rsqrt(x.double().square().mean(-1, keepdim=True) + 1e-6)
        * w.double(),
        dims={{"rows": rows, "hidden": hidden}},
        nbytes=8 * rows * hidden,
        weights=(1,),
    )
"""

PLUGIN = '''\
"""Leaves checks of honesty out, in the process that decides and in those that run cases."""

import sys

RUNS_CASES = "pytest_kopt.processes.served" in sys.modules


def replace(owner, name, value):
    assert hasattr(owner, name), f"{owner} has no {name}"
    setattr(owner, name, value)


def finds_nothing(*given, **named):
    return []


'''
WITHOUT_ALL = """\
from pytest_kopt.paired import arms, blocks, credit, verifier_process
from pytest_kopt.trials.rounds import candidate

replace(candidate.Examination, "_audited", property(finds_nothing))
replace(credit, "look_alone", lambda *given: credit.Company())
replace(blocks, "_LOOKS", 0)
replace(arms.Arms, "asks_more", False)
replace(
    arms.Arms,
    "start_verifier",
    lambda *given: verifier_process.Verifier(None, broken="left out"),  # type: ignore[arg-type]
)

if RUNS_CASES:
    from pytest_kopt.cases.running import check, checking, runner, timed_versions, timing
    replace(check, "_steps", lambda checking: [check.fresh_content])
    for owner, names in (
        (check, "equal_calls _after_steps"),
        (checking.Checking, "_findings_of_call"),
        (runner, "caches"),
        (timing, "too_fast uncaptured wrong_results known_content"),
        (timed_versions, "known_content"),
    ):
        for name in names.split():
            replace(owner, name, finds_nothing)

    replace(timing, "Content", lambda *given: None)
    replace(timing, "Gradients", lambda *given: None)
"""
WITHOUT_BITS = """\
if RUNS_CASES:
    from pytest_kopt.cases.running import check

    replace(check, "equal_calls", finds_nothing)
"""
WITHOUT_KINDS = """\
if RUNS_CASES:
    from pytest_kopt.cases.nearby import near_inputs

    for kind in {kinds!r}:
        del near_inputs.TRANSFORMATIONS[kind]
"""
#: Kinds of inputs near the declared ones, as kopt names them.
PATTERNS = [
    *("counts", "masks", "unread", "layout", "aliased", "numbers", "ends", "signs"),
]
#: By what `--without` names: the text of the plugin that leaves it out.
GROUPS = {
    "exact": WITHOUT_KINDS.format(kinds=["exact"]),
    "bits": WITHOUT_BITS,
    "patterns": WITHOUT_KINDS.format(kinds=PATTERNS),
    "all": WITHOUT_ALL,
}


def plugin(groups: Sequence[str]) -> str:
    """Return the plugin that leaves some groups of checks out."""
    return PLUGIN + "\n".join(GROUPS[group] for group in groups)


class Kind:
    """Rounds without some groups of checks: a project after its baseline, copied for each round."""

    def __init__(self, folder: Path, name: str, device: str, without: Sequence[str] = ()) -> None:
        self.name = name
        self._device = device
        self._project = folder / name
        self._plugins = {"PYTEST_PLUGINS": "unchecked"} if without else {}
        for path, text in (
            ("pyproject.toml", SETTINGS + (UNBOUND if "all" in without else "")),
            ("kernels/__init__.py", ""),
            ("kernels/rmsnorm.py", BASELINE),
            ("tests/test_rmsnorm.py", CASES.format(scale=8 if device == "cuda" else 1)),
            ("unchecked.py", plugin(without)),
            (".gitignore", "__pycache__/\nagent/\n"),
        ):
            (self._project / path).parent.mkdir(parents=True, exist_ok=True)
            (self._project / path).write_text(text)
        words = ("init", CAMPAIGN, "--op", "rmsnorm", "--kernel", "kernels/rmsnorm.py")
        for command in (
            ("git", "init", "-q"),
            ("git", "add", "."),
            ("git", "-c", "user.name=t", "-c", "user.email=t@localhost", "commit", "-qm", "Start"),
            (sys.executable, "-m", "pytest_kopt.cli", *words, "--backend", "TORCH", "--gpu",
             "cpu" if device == "cpu" else _arch()),
        ):  # fmt: skip
            subprocess.run(command, cwd=self._project, check=True, capture_output=True)
        self._pytest(self._project, 1, 0)
        (self._project / "kernels/rmsnorm.py").write_text(CANDIDATE)

    def round(self) -> dict[str, Any]:
        """Run round 2 in a copy; return its wall time and how many processes compared."""
        copy = self._project.with_name(f"{self.name}-round")
        shutil.copytree(self._project, copy)
        seconds = self._pytest(copy, 2, 0)
        folder = copy / "agent/workspace" / CAMPAIGN / "rounds/round-2"
        decision = json.loads((folder / "verdict.json").read_text())["decision"]
        evidence = json.loads((folder / "artifacts/attempt-1/evidence.json").read_text())
        shutil.rmtree(copy)
        cases = [json.loads(text)["evidence"]["seconds"] for text in evidence["results"]]
        return {
            "kind": self.name,
            "seconds": round(seconds, 2),
            "seconds in cases": round(sum(cases), 2),
            "processes": evidence["session"]["comparison"]["replicas"],
            "decision": decision,
        }

    def _pytest(self, root: Path, number: int, code: int) -> float:
        words = ("--kopt-campaign", CAMPAIGN, "--kopt-round", str(number))
        done = run(root, *words, "--kopt-device", self._device, **self._plugins)
        if done.code != code:
            sys.exit(f"{self.name}, round {number}: {done.code}\n{done.text[-4000:]}")
        return done.seconds


def _arch() -> str:
    """Ask in a process of its own: a context here would be a stranger's on the device."""
    ask = "import torch; print('sm_%d%d' % torch.cuda.get_device_capability())"
    return subprocess.check_output([sys.executable, "-c", ask], text=True).strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--without", choices=GROUPS, action="append", metavar="GROUP")
    asked = parser.parse_args()
    without = sorted(set(asked.without or ["all"]))
    is_all = "all" in without
    name = "_".join(["honesty_cost", asked.device, *([] if is_all else without)])
    report = Report(asked.out, name)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        kinds = [
            Kind(folder, "checked", asked.device),
            Kind(folder, "unchecked", asked.device, without),
        ]
        rounds = []
        for number in range(asked.pairs + 1):
            pair = [kind.round() for kind in (kinds if number % 2 else kinds[::-1])]
            print(f"pair {number} of {asked.pairs}: {pair}", flush=True)
            rounds += pair if number else []
            report.add("rounds", rounds)
    medians = {
        kind.name: statistics.median(r["seconds"] for r in rounds if r["kind"] == kind.name)
        for kind in kinds
    }
    seconds = medians["checked"] - medians["unchecked"]
    more = seconds / medians["unchecked"] * 100
    total = {
        **medians,
        "without": without,
        "more %": round(more, 1),
        "asked %": ASKED_PCT if is_all else ASKED_OF_GROUPS_PCT,
        "more s a case": round(seconds / CASES_OF_A_ROUND, 3),
    }
    report.table("Rounds of five cases", rounds)
    report.add("total", total)
    print(
        f"{more:+.1f} % wall time for {', '.join(without)} (asked: at most "
        f"{total['asked %']:.0f} %), {total['more s a case']:+.3f} s a case"
    )


if __name__ == "__main__":
    main()
