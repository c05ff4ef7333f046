"""No straw men: the plain harness believes every cheat here, and every honest kernel.

The plugin's own tests judge the same files; these say that judging them takes some doing.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

HERE = Path(__file__).resolve().parent
CHEATS = sorted(HERE.glob("cheats/*__*.py"))
HONEST = sorted(HERE.glob("honest/*__*.py"))
OPERATIONS = {path.stem for path in HERE.glob("baseline/*.py")}
FASTER = 1.05

CONTROLS = {
    "all_zeros": ("softmax", "return torch.zeros_like(x)"),
    "wrong_row": ("softmax", "y = torch.softmax(x, 1)\n    y[-1] = 0\n    return y"),
    "slow": (
        "softmax",
        "return [torch.stack([torch.softmax(r, 0) for r in x]) for _ in range(9)][0]",
    ),
}


@cache
def constants(path: Path) -> dict[str, Any]:
    """The literal constants and the docstring of a kernel file, read without running it."""
    tree = ast.parse(path.read_text())
    found: dict[str, Any] = {"doc": ast.get_docstring(tree) or ""}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
            found.update((t.id, node.value.value) for t in node.targets if isinstance(t, ast.Name))
    return found


def on_cpu(paths: list[Path]) -> list[Path]:
    return [path for path in paths if constants(path)["NEEDS"] == "cpu"]


def on_gpu(paths: list[Path]) -> list[Path]:
    return [path for path in paths if constants(path)["NEEDS"] == "cuda"]


def in_triton(paths: list[Path]) -> list[Path]:
    return [path for path in paths if constants(path).get("LANG") == "triton"]


def measure(paths: list[Path]) -> dict[str, dict[str, Any]]:
    """What the plain harness says of each file: its exit status, its rows and its log."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    env["CUDA_VISIBLE_DEVICES"] = ""
    done = subprocess.run(
        [sys.executable, str(HERE / "plain.py"), *map(str, paths)],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    return {Path(r["file"]).stem: r for r in map(json.loads, done.stdout.splitlines())}


def measure_on_gpu(path: Path) -> dict[str, Any]:
    """The same of one file on the GPU, in an interpreter of its own."""
    done = subprocess.run(
        [sys.executable, str(HERE / "plain.py"), str(path)], capture_output=True, text=True
    )
    return {"exit": done.returncode, "log": done.stdout + done.stderr}


def rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """The last row printed for each size, as a script that reads results would take them."""
    last: dict[tuple[int, ...], dict[str, Any]] = {}
    for line in report["log"].splitlines():
        if line.startswith('{"kernel"'):
            row = json.loads(line)
            last[tuple(v for k, v in row.items() if len(k) == 1)] = row
    return list(last.values())


def believed(report: dict[str, Any]) -> bool:
    """The harness left with status 0 and reported nothing but right answers."""
    found = rows(report)
    return report["exit"] == 0 and bool(found) and all(row["ok"] for row in found)


def speedup(report: dict[str, Any]) -> float:
    """The smallest reported gain over the baseline of all sizes."""
    return min(row["baseline_ms"] / row["ms"] for row in rows(report))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """One pass over everything that runs without a GPU, controls included."""
    folder = tmp_path_factory.mktemp("controls")
    controls = []
    for name, (op, body) in CONTROLS.items():
        path = folder / f"{op}__{name}.py"
        path.write_text(f"import torch\n\n\ndef {op}(x):\n    {body}\n")
        controls.append(path)
    return measure([*on_cpu(CHEATS), *on_cpu(HONEST), *controls])


@pytest.mark.parametrize("path", on_cpu(CHEATS), ids=lambda p: p.stem)
def test_the_plain_harness_believes_the_cheat(
    path: Path, reports: dict[str, dict[str, Any]]
) -> None:
    report = reports[path.stem]
    assert believed(report), report["log"]
    if constants(path).get("GAIN") != "none":
        assert speedup(report) >= FASTER


@pytest.mark.parametrize("path", on_cpu(HONEST), ids=lambda p: p.stem)
def test_the_plain_harness_believes_the_honest_kernel(
    path: Path, reports: dict[str, dict[str, Any]]
) -> None:
    tool = constants(path).get("REQUIRES")
    if tool is not None and shutil.which(tool) is None:
        pytest.skip(f"needs {tool}")
    assert believed(reports[path.stem]), reports[path.stem]["log"]


@needs_gpu
@pytest.mark.parametrize("path", on_gpu(CHEATS), ids=lambda p: p.stem)
def test_the_plain_harness_believes_the_cheat_on_a_gpu(path: Path) -> None:
    report = measure_on_gpu(path)
    assert believed(report), report["log"]
    if constants(path).get("GAIN") != "none":
        assert speedup(report) >= FASTER


@needs_gpu
@pytest.mark.parametrize("path", [*on_gpu(HONEST), *in_triton(HONEST)], ids=lambda p: p.stem)
def test_the_plain_harness_believes_the_honest_kernel_on_a_gpu(path: Path) -> None:
    report = measure_on_gpu(path)
    assert believed(report), report["log"]
    assert speedup(report) >= FASTER


@pytest.mark.parametrize("name", ["all_zeros", "wrong_row"])
def test_a_simply_wrong_kernel_is_not_believed(
    name: str, reports: dict[str, dict[str, Any]]
) -> None:
    assert reports[f"softmax__{name}"]["exit"] == 1
    assert not believed(reports[f"softmax__{name}"])


def test_a_slow_kernel_is_right_but_not_faster(reports: dict[str, dict[str, Any]]) -> None:
    assert believed(reports["softmax__slow"])
    assert speedup(reports["softmax__slow"]) < FASTER


def test_there_are_enough_kernels_of_distinct_kinds() -> None:
    kinds = [constants(path)["KIND"] for path in CHEATS]
    assert len(set(kinds)) == len(kinds) >= 36
    assert len(HONEST) >= 24


@pytest.mark.parametrize("path", [*CHEATS, *HONEST], ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_file_says_what_it_is(path: Path) -> None:
    known = constants(path)
    assert len(known["doc"].split()) >= 3
    assert known["NEEDS"] in ("cpu", "cuda")
    assert path.stem.split("__")[0] in OPERATIONS
    assert ("KIND" in known) == (path.parent.name == "cheats")


@pytest.mark.parametrize(
    "path", [p for p in CHEATS if constants(p).get("GAIN") == "none"], ids=lambda p: p.stem
)
def test_a_cheat_without_a_gain_says_why(path: Path) -> None:
    (line,) = [t for t in path.read_text().splitlines() if t.startswith("GAIN")]
    assert len(line.partition("#")[2].split()) >= 5
