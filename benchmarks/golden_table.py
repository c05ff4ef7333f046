"""The golden table: how every kernel, case and vector ends, before and after a change of kopt.

    python benchmarks/golden_table.py OUT.json [--device cuda] [--jobs N] [--names NAME ...]
        [--cases FOLDER] [--kernels FOLDER ...] [--vectors FOLDER] [--against OLD.json]

It plays both corpora of `tests/corpus`. A folder of cases holds `NAME/steps.sh`, which exits with 0
if the outcome is right. A folder of kernels holds `play.py`, which prints a line each. A vector is
two CSVs with the decision and exit code that `kopt decide` has to give. OUT.json gets a row each:
how it ended, whether that is right, and its seconds. With `--against` the rows that ended otherwise
are listed, and the exit status is 1 if one that was right then is wrong now.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

CORPUS = Path(__file__).resolve().parents[1] / "tests" / "corpus"
#: Exit codes of a `steps.sh`: a missing plugin or noise says nothing of kopt.
ENDS = {0: "right", 1: "WRONG", 2: "does not apply", 3: "undecided"}
#: How a round of an honest kernel may end; Triton's interpreter decides nothing.
HONEST_ENDS = ("ACCEPTED", "INCONCLUSIVE", "ROLLED_BACK", "SPLIT", "INCOMPLETE")


@dataclass(frozen=True)
class Row:
    """One kernel, case or vector; `ended` is its decision or exit code, in words."""

    group: str
    name: str
    ended: str
    is_right: bool
    seconds: float


def run(*words: str, seconds: float = 900.0) -> tuple[int, str, float]:
    """Run a command with this interpreter's folder first on PATH: exit code, output, seconds."""
    env = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    start = time.monotonic()
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        timeout=seconds,
        check=False,
    )
    return done.returncode, done.stdout, time.monotonic() - start


def corpora(results: Path, device: str, names: Sequence[str], jobs: int) -> Iterator[Row]:
    """Both corpora, each kernel as round 2 of a campaign; `results` keeps those of a broken run."""
    script = str(CORPUS / "through_plugin.py")
    options = ("--device", device, "--jobs", str(jobs), "--results", str(results))
    run(sys.executable, script, *options, *names, seconds=36000)
    for line in results.read_text().splitlines():
        outcome = json.loads(line)
        kept = outcome["decision"].startswith("ACCEPTED")
        if outcome["kind"] == "cheats":
            is_right = not kept or outcome["gain_pct"] < outcome["own_gain_pct"]
        else:
            is_right = outcome["decision"].startswith(HONEST_ENDS)
        seconds = round(outcome["seconds"], 1)
        yield Row(outcome["kind"], outcome["kernel"], outcome["decision"], is_right, seconds)


def cases(folder: Path, names: Sequence[str]) -> Iterator[Row]:
    """Projects with a `steps.sh` each."""
    for script in sorted(folder.glob("*/steps.sh")):
        name = script.parent.name
        if not names or any(word in name for word in names):
            code, _, seconds = run("bash", str(script))
            yield Row("cases", name, ENDS.get(code, f"exit {code}"), code != 1, round(seconds, 1))


def kernels(folder: Path, names: Sequence[str]) -> Iterator[Row]:
    """Kernels that a folder's `play.py` plays, one process each: a crash loses one row."""
    for path in sorted([*folder.glob("cheats/*.py"), *folder.glob("honest/*.py")]):
        if names and not any(word in path.stem for word in names):
            continue
        _, output, seconds = run(sys.executable, str(folder / "play.py"), str(path))
        lines = [line for line in output.splitlines() if line.startswith(("right", "WRONG"))]
        first = lines[0] if lines else "no line"
        group = f"{folder.name} {path.parent.name}"
        yield Row(group, path.stem, first[:160], first.startswith("right"), round(seconds, 1))


def vectors(folder: Path) -> Iterator[Row]:
    """Two CSVs each, decided offline."""
    for expected in sorted(folder.glob("*/expected.json")):
        at, known = expected.parent, json.loads(expected.read_text())
        words = ["-m", "pytest_kopt.cli", "decide", "--json"]
        for name in ("candidate", "incumbent"):
            words += [f"--{name}", str(at / f"{name}.csv")]
        for again in sorted(at.glob("remeasure*.csv")):
            words += ["--remeasure", str(again)]
        code, output, seconds = run(sys.executable, *words)
        try:
            decision = json.loads(output)["decision"]
        except ValueError:
            decision = f"exit {code}"
        is_right = code in known["exit"] and (code == 4 or decision in known["decision"])
        yield Row("vectors", at.name, f"{decision} {code}", is_right, round(seconds, 1))


def compared(before: Iterable[Row], after: Iterable[Row]) -> tuple[str, bool]:
    """The rows that ended otherwise, and whether one that was right is wrong now."""
    old = {(row.group, row.name): row for row in before}
    pairs = [(old[key], row) for row in after if (key := (row.group, row.name)) in old]
    lines = [
        f"{new.group}: {new.name}: {then.ended} -> {new.ended}{'' if new.is_right else '  WRONG'}"
        for then, new in pairs
        if (then.ended.split()[:1], then.is_right) != (new.ended.split()[:1], new.is_right)
    ]
    ratios = [new.seconds / then.seconds for then, new in pairs if then.seconds and new.seconds]
    lines.append(f"{len(pairs)} rows compared")
    lines += [f"seconds: {median(ratios):.2f} of before in the median"] if ratios else []
    return "\n".join(lines), any(then.is_right and not new.is_right for then, new in pairs)


def main() -> int:
    """Play what is asked for, write the rows after each, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--kernels", type=Path, nargs="*", default=[])
    parser.add_argument("--vectors", type=Path)
    parser.add_argument("--no-corpora", action="store_true")
    parser.add_argument("--against", type=Path)
    asked = parser.parse_args()
    parts: list[Iterator[Row]] = [vectors(asked.vectors)] if asked.vectors else []
    parts += [cases(asked.cases, asked.names)] if asked.cases else []
    parts += [kernels(folder, asked.names) for folder in asked.kernels]
    results = asked.out.with_suffix(".corpora.jsonl")
    if not asked.no_corpora:
        parts.append(corpora(results, asked.device, asked.names, asked.jobs))
    rows: list[Row] = []
    for part in parts:
        for row in part:
            rows.append(row)
            print(f"{row.group:16} {row.name:44} {row.seconds:6.1f} s  {row.ended}", flush=True)
            asked.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    print(f"{len(rows)} rows, {sum(not row.is_right for row in rows)} not right")
    if asked.against is None:
        return 0
    text, is_worse = compared((Row(**row) for row in json.loads(asked.against.read_text())), rows)
    print(text)
    return 1 if is_worse else 0


if __name__ == "__main__":
    sys.exit(main())
