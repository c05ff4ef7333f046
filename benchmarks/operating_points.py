"""Known changes at both operating points of a GPU, and measurements of them without kopt's code.

python benchmarks/operating_points.py OUT [--part NAME ...] [--seconds 500] [--sessions 2] [--dry]

Parts, each of a few minutes on one H100, and what they put into OUT/operating_points.json:

independent  every change of `points_project`, at boost and under sustained load, for a long time
verdicts     the same changes in rounds of a campaign: intervals at both points
spread       identical code in many processes: the standard deviation between them
same         rounds of identical code, five cases: decisions, the largest difference, wall clock
quarter      rounds in which every case gains 0.25 %

What is in the record already is not measured again; a part that is out of `--seconds` stops and
goes on at the next call. `--dry` goes through all of it on a CPU, in small sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PROJECT = HERE / "points_project"
KERNEL = Path("kernels/ops.py")
HALVES = ("first", "second")
PARTS = ("independent", "verdicts", "spread", "same", "quarter")
POINTS = ("boost", "sustained")
#: Quads of short blocks in one set-up at boost, set-ups, and a block and the pause after it in ms.
_QUADS, _SET_UPS, _BLOCK_MS, _PAUSE_MS = 4, 8, 2.5, 15.0
#: Each version's turn under load in s: before it is timed, and while; quads of turns.
_LEAD_S, _TIMED_S, _TURNS = 0.3, 0.6, 1
#: Sets of arguments go round until so many bytes lie between two uses of one.
_COLD_BYTES = 128 << 20


class Record:
    """OUT/operating_points.json, written whenever something is added."""

    def __init__(self, out: Path, seconds: float) -> None:
        out.mkdir(parents=True, exist_ok=True)
        self._path = out / "operating_points.json"
        self.found: dict[str, Any] = {}
        if self._path.exists():
            self.found = json.loads(self._path.read_text())
        self._until = time.monotonic() + seconds

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._until

    def once(self, part: str, key: str, measure: Callable[[], Any]) -> None:
        """Measure what is not there yet, while there is time."""
        done = self.found.setdefault(part, {})
        if key in done or self.is_over:
            return
        began = time.monotonic()
        done[key] = measure()
        took = time.monotonic() - began
        print(f"{part} {key}: {took:.1f} s {json.dumps(done[key])[:300]}", flush=True)
        self._path.write_text(json.dumps(self.found, indent=1) + "\n")

    def set(self, key: str, value: Any) -> None:
        self.found[key] = value
        self._path.write_text(json.dumps(self.found, indent=1) + "\n")


# --- The independent measurement: torch, Triton's kernels and NVML, nothing of kopt. -------------


class Stopwatch:
    """Times calls of one version on one set-up, as replays of a graph, or by the wall on a CPU."""

    def __init__(self, calls: list[Callable[[], object]], on_gpu: bool) -> None:
        import torch

        self._torch, self._on_gpu, self._calls = torch, on_gpu, calls
        for call in calls * 2:
            call()
        if not on_gpu:
            return
        torch.cuda.synchronize()
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._kept = [call() for call in calls]
        self._graph.replay()
        torch.cuda.synchronize()

    def replay(self) -> None:
        if self._on_gpu:
            self._graph.replay()
            return
        for call in self._calls:
            call()

    def block(self, ms: float, once_ms: float | None = None) -> float:
        """Return the ms of a call, from a block of about so many ms."""
        rounds = max(1, math.ceil(ms / once_ms)) if once_ms else 1
        if not self._on_gpu:
            began = time.perf_counter()
            for _ in range(rounds):
                self.replay()
            return (time.perf_counter() - began) * 1e3 / rounds / len(self._calls)
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(rounds):
            self._graph.replay()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / rounds / len(self._calls)

    def round_ms(self) -> float:
        self.block(1.0)
        return self.block(1.0) * len(self._calls)


class Clock:
    """The GPU's clock in MHz, power in W and energy in J; zeros on a CPU."""

    def __init__(self, on_gpu: bool) -> None:
        self._nvml: Any = None
        if on_gpu:
            import pynvml

            pynvml.nvmlInit()
            self._nvml = pynvml
            visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(int(visible[0]))

    def mhz(self) -> float:
        nvml = self._nvml
        return float(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)) if nvml else 0.0

    def joules(self) -> float:
        nvml = self._nvml
        return nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3 if nvml else 0.0


def set_up(ops: Any, name: str, device: str) -> tuple[dict[str, Stopwatch], list[Any]]:
    """Return both versions on fresh buffers, as many sets as do not fit into the cache."""
    if device != "cpu":
        _move_on(random.randrange(1, 64) << 26)
    first = ops.draw(name, device)
    size = sum(x.numel() * x.element_size() for x in first)
    count = 2 if device == "cpu" else max(2, min(512, math.ceil(_COLD_BYTES / size)))
    # A graph of no more than 5 ms, as a block is of a few.
    sets = [first, *(ops.draw(name, device) for _ in range(count - 1))]

    def calls(version: str) -> list[Callable[[], object]]:
        return [lambda x=x: ops.call(name, version, *x) for x in sets]

    watches = {v: Stopwatch(calls(v), device != "cpu") for v in ("before", "after")}
    return watches, sets


#: What keeps later buffers from lying where earlier ones did, in all set-ups of this process.
_BETWEEN: list[Any] = []


def _move_on(size: int) -> None:
    """Give memory back, and hold as many bytes as `size` and no more: later buffers lie elsewhere.

    A change of a large product differs by a percent with where its buffers lie; a process's
    allocator would hand out the same memory again.
    """
    import torch

    _BETWEEN.clear()
    torch.cuda.empty_cache()
    _BETWEEN.append(torch.empty(size, dtype=torch.uint8, device="cuda"))


def gained(quads: list[list[tuple[str, float]]]) -> list[float]:
    """Return log(before / after) of adjacent blocks."""
    pairs = (dict(half) for quad in quads for half in (quad[:2], quad[2:]))
    return [math.log(pair["before"] / pair["after"]) for pair in pairs]


ORDERS = (("before", "after", "after", "before"), ("after", "before", "before", "after"))


def at_boost(ops: Any, name: str, device: str, dry: bool) -> dict[str, Any]:
    """Measure a change with short blocks and long pauses, on several set-ups."""
    means, clocks, clock = [], [], Clock(device != "cpu")
    for _ in range(2 if dry else _SET_UPS):
        watches, sets = set_up(ops, name, device)
        rounds = {version: watch.round_ms() for version, watch in watches.items()}
        quads = []
        for number in range(2 if dry else _QUADS):
            quad = []
            for version in ORDERS[number % 2]:
                time.sleep(0.0 if dry else _PAUSE_MS / 1e3)
                watches[version].block(0.1, rounds[version])
                quad.append((version, watches[version].block(_BLOCK_MS, rounds[version])))
                clocks.append(clock.mhz())
            quads.append(quad)
        means.append(statistics.median(gained(quads)))
        del watches, sets
    return {**summary(means), "mhz": statistics.median(clocks)}


def under_load(ops: Any, name: str, device: str, dry: bool) -> dict[str, Any]:
    """Measure a change with turns of seconds, in which one version alone keeps the device busy."""
    watches, _sets = set_up(ops, name, device)
    rounds = {version: watch.round_ms() for version, watch in watches.items()}
    clock = Clock(device != "cpu")
    lead, timed = (0.01, 0.02) if dry else (_LEAD_S, _TIMED_S)

    def busy(version: str, seconds: float) -> tuple[float, float, float]:
        times, clocks, began, energy = [], [], time.perf_counter(), clock.joules()
        while (now := time.perf_counter()) < began + seconds:
            times.append(watches[version].block(10.0, rounds[version]))
            clocks.append(clock.mhz())
        watts = (clock.joules() - energy) / (now - began)
        return statistics.fmean(times), statistics.fmean(clocks), watts

    quads: list[list[tuple[str, float]]] = []
    states: dict[str, list[tuple[float, float]]] = {"before": [], "after": []}
    for number in range(_TURNS):
        quad = []
        for version in ORDERS[number % 2]:
            busy(version, lead)
            ms, mhz, watts = busy(version, timed)
            quad.append((version, ms))
            states[version].append((mhz, watts))
        quads.append(quad)
    means = {
        f"{version} {unit}": statistics.fmean(state[place] for state in of_version)
        for version, of_version in states.items()
        for place, unit in enumerate(("mhz", "watts"))
    }
    return {**summary(gained(quads)), **means}


def summary(ratios: list[float]) -> dict[str, Any]:
    error = statistics.stdev(ratios) / math.sqrt(len(ratios))
    return {
        "change_pct": 100 * math.expm1(statistics.fmean(ratios)),
        "error_pct": 100 * error,
        "of": len(ratios),
    }


def independent(record: Record, root: Path, dry: bool) -> None:
    sys.path.insert(0, str(root))
    from kernels import ops

    device = "cpu" if dry else "cuda"
    for name in ops.NAMES:
        record.once("independent", f"{name} at boost", lambda n=name: at_boost(ops, n, device, dry))
        record.once(
            "independent", f"{name} at sustained", lambda n=name: under_load(ops, n, device, dry)
        )


# --- The same changes through kopt. -------------------------------------------------------------


def project(folder: Path, dry: bool) -> Path:
    root = Path(shutil.copytree(PROJECT, folder / "project", dirs_exist_ok=True))
    if dry:
        edit(root, "SMALL = False", "SMALL = True")
    return root


def edit(root: Path, old: str, new: str) -> None:
    text = (root / KERNEL).read_text()
    assert text.count(old) == 1, old
    (root / KERNEL).write_text(text.replace(old, new))


def pytest(root: Path, *words: str) -> tuple[float, str]:
    """Run pytest in a project; return the seconds and the output."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *words]
    done = subprocess.run(
        command, cwd=root, env=environment(), capture_output=True, text=True, check=False
    )
    return time.perf_counter() - began, done.stdout + done.stderr


def environment() -> dict[str, str]:
    """Return variables with which a process finds the package of this tree."""
    return {
        **os.environ,
        "PYTHONPATH": f"{HERE.parent}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
    }


def campaign(folder: Path, half: str, dry: bool) -> Path:
    """Return a project with a campaign of a half's cases, its baseline measured."""
    root = project(folder, dry)
    backend, gpu = ("TORCH", "cpu") if dry else ("TRITON", "H200")
    words = ["init", "points", "--op", "ops", "--kernel", str(KERNEL), "--backend", backend]
    words += ["--gpu", gpu, "--tests", f"tests/test_{half}.py"]
    subprocess.run(
        [sys.executable, "-m", "pytest_kopt.cli", *words],
        cwd=root,
        env=environment(),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    _, text = pytest(root, "--kopt-campaign", "points", "--kopt-round", "1")
    if "BASELINE" not in text:
        sys.exit(f"no baseline:\n{text}")
    return root


def judged(root: Path) -> dict[str, Any]:
    """Run the next round; return what its verdict says of every case."""
    out = root / "verdict.json"
    words = ["--kopt-campaign", "points", "--kopt-round", "next", "--kopt-level", "full"]
    words += ["--kopt-verdict", str(out)]
    seconds, text = pytest(root, *words)
    if not out.exists():
        sys.exit(f"no verdict:\n{text}")
    verdict = json.loads(out.read_text())
    attempt = root / f"agent/workspace/points/rounds/round-{verdict['round']}/artifacts/attempt-1"
    session = json.loads((attempt / "evidence.json").read_text())["session"]
    return {
        "seconds": seconds,
        "device_seconds": session["comparison"]["device_seconds"],
        "replicas": session["comparison"]["replicas"],
        "blocks": [
            {key: measured[key] for key in ("label", "round_of_inference", "timed", "blocks")}
            for measured in session["comparison"]["measured"]
        ],
        "decision": verdict["decision"],
        "reason": verdict["reason"],
        "flags": verdict["flags"],
        "shapes": {
            shape["label"]: {
                key: shape.get(key)
                for key in ("operating_point", "is_steady", "points_differ", "operating_points")
            }
            for shape in verdict["shapes"]
        },
    }


def verdicts(record: Record, sessions: int, dry: bool) -> None:
    for session in range(sessions):
        for half in HALVES:

            def one(half: str = half) -> dict[str, Any]:
                with tempfile.TemporaryDirectory() as folder:
                    root = campaign(Path(folder), half, dry)
                    edit(root, 'VERSION = "before"', 'VERSION = "after"')
                    return judged(root)

            record.once("verdicts", f"{half} half, session {session + 1}", one)


def five_cases(record: Record, part: str, dry: bool, rounds: int) -> None:
    """Run what `paired_gpu.py` and calibration measure on five cases of `gpu_project`."""
    if dry:
        return
    from paired_gpu import BASE, ONE, edit_without_effect, judge, launch
    from paired_gpu import campaign as made

    with tempfile.TemporaryDirectory() as folder:
        if part == "spread":
            root = Path(shutil.copytree(HERE / "gpu_project", Path(folder) / "spread"))
            record.once(part, "forty processes", lambda: spread(root, 40))
            return
        tests = "tests/test_ops.py" if part == "same" else "tests/test_light.py"
        light = dict.fromkeys(("matmul", "rmsnorm"), BASE)
        root = made(Path(folder), ONE if part == "same" else {**ONE, **light}, tests)
        for number in range(rounds):
            key = f"round {number + 1}"
            if key in record.found.get(part, {}) or record.is_over:
                continue
            if part == "same":
                edit_without_effect(root, number)
                record.once(part, key, lambda: short(judge(root, {})))
                continue
            copy = root.with_name(f"quarter-{number}")
            shutil.copytree(root, copy, symlinks=True)
            launch(copy, {**ONE, **dict.fromkeys(light, BASE - 1)})
            record.once(part, key, lambda c=copy: short(judge(c, {"all": 0.25})))


def short(found: dict[str, Any]) -> dict[str, Any]:
    kept = ("wall_seconds", "decision", "flags", "aggregate", "shapes")
    return {**{key: found[key] for key in kept}, "replicas": found["comparison"]["replicas"]}


def spread(root: Path, processes: int) -> dict[str, Any]:
    """Return the noise of identical code over so many processes, as a calibration says it."""
    seconds, text = pytest(root, "tests/test_ops.py", "--kopt-calibrate", str(processes))
    sds = dict(re.findall(r"^ *(\S.*?): sd ([\d.]+) %", text, flags=re.M))
    worst = re.search(r"geomean: sd ([\d.]+) %, worst ([\d.]+) %", text)
    if worst is None:
        sys.exit(f"no calibration:\n{text}")
    return {"seconds": seconds, "sd_pct": sds, "geomean": [float(x) for x in worst.groups()]}


# --- What all of it says. ------------------------------------------------------------------------


def covered(record: Record) -> Iterator[dict[str, Any]]:
    """Yield, for each change, point and session, both figures and whether the interval holds it."""
    long = record.found.get("independent", {})
    for session, verdict in record.found.get("verdicts", {}).items():
        for name, shape in verdict["shapes"].items():
            points = {point["name"]: point for point in shape["operating_points"] or ()}
            for point in POINTS:
                truth = long.get(f"{name} at {point}")
                said = points.get(point) or (points.get("boost") if shape["is_steady"] else None)
                if truth is None or said is None:
                    continue
                margin = 2 * truth["error_pct"]
                yield {
                    "change": name,
                    "point": point,
                    "session": session,
                    "independent": truth["change_pct"],
                    "error": truth["error_pct"],
                    "verdict": said["change_pct"],
                    "low": said["low_pct"],
                    "high": said["high_pct"],
                    "inside": said["low_pct"] <= truth["change_pct"] <= said["high_pct"],
                    "within both": said["low_pct"] - margin
                    <= truth["change_pct"]
                    <= said["high_pct"] + margin,
                }


def concluded(record: Record) -> dict[str, Any]:
    rows = [*covered(record)]
    same = record.found.get("same", {}).values()
    quarter = record.found.get("quarter", {}).values()
    changes = [abs(found["aggregate"]["change_pct"]) for found in same]
    return {
        "compared": len(rows),
        "inside": sum(row["inside"] for row in rows),
        "within both": sum(row["within both"] for row in rows),
        "rows": rows,
        "same": {
            "rounds": len(changes),
            "accepted": sum(found["decision"].startswith("ACCEPTED") for found in same),
            "worst_pct": max(changes, default=None),
            "regressed": sum(s == "regressed" for f in same for _, s in f["shapes"].values()),
            "flagged": sum(bool(found["flags"]) for found in same),
            "seconds": [found["wall_seconds"] for found in same],
        },
        "quarter": {
            "rounds": len(quarter),
            "accepted": sum(found["decision"].startswith("ACCEPTED") for found in quarter),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("out", type=Path)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--seconds", type=float, default=500.0)
    parser.add_argument("--sessions", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--dry", action="store_true")
    asked = parser.parse_args()
    if len(asked.part or PARTS) > 1:
        # Each in a process of its own: a context on the GPU would be a stranger to kopt.
        until = time.monotonic() + asked.seconds
        words = [word for word in sys.argv[1:] if word not in ("--part", *PARTS)]
        for part in asked.part or PARTS:
            left = str(max(0.0, until - time.monotonic()))
            again = [sys.executable, __file__, *words, "--part", part, "--seconds", left]
            subprocess.run(again, check=True)
        return
    record = Record(asked.out, asked.seconds)
    if not asked.dry:
        from gpu_report import machine

        record.set("machine", machine())
    (part,) = asked.part
    if part == "independent":
        with tempfile.TemporaryDirectory() as folder:
            independent(record, project(Path(folder), asked.dry), asked.dry)
    elif part == "verdicts":
        verdicts(record, asked.sessions, asked.dry)
    else:
        five_cases(record, part, asked.dry, asked.rounds)
    record.set("concluded", concluded(record))
    print(json.dumps({k: v for k, v in record.found["concluded"].items() if k != "rows"}, indent=1))


if __name__ == "__main__":
    main()
