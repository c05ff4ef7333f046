"""`benchmarks/reload_replicas.py`: what nested variance components say of forks and re-loads."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import reload_replicas
from reload_replicas import WORTH, components, worth
from reloading_plugin import plan


@pytest.mark.parametrize(("process", "seen"), [(0.0, False), (0.003, True)])
def test_effect_of_the_process_is_told_from_that_of_the_re_load(process: float, seen: bool) -> None:
    draw = np.random.default_rng(1)
    forks = draw.normal(0, process, (200, 1, 1))
    reloads = draw.normal(0, 0.002, (200, 5, 1))
    quads = forks + reloads + draw.normal(0, 0.001 * 3**0.5, (200, 5, 3))
    found = components(quads.mean(axis=2), quads)
    assert (float(found["p"]) < 0.01) is seen
    assert float(found["between re-loads %"]) == pytest.approx(0.2, rel=0.1)
    assert float(found["in a re-load %"]) == pytest.approx(0.1, rel=0.1)
    between = float(found["sd between forks % (95 %)"].split()[0])
    assert between == pytest.approx(process * 100, abs=0.05)
    expected = worth(process**2 / (0.002**2 + 0.001**2))
    assert float(found[WORTH].split()[0]) == pytest.approx(expected, abs=0.1)


def test_forks_at_once_take_turns() -> None:
    assert plan(4, 2)[:5] == [(1, 1), (2, 1), (1, 2), (2, 2), (3, 1)]


@pytest.mark.long
def test_forks_carry_several_replicas(tmp_path: Path) -> None:
    script = Path(reload_replicas.__file__)
    words = [str(script), str(tmp_path), "--forks", "2", "--reloads", "2", "--device", "cpu"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert "2 forks of 2 re-loads" in done.stdout, done.stdout
    found = json.loads((tmp_path / "reload_replicas.json").read_text())["replicas"]
    assert [(r["fork"], r["reload"]) for r in found] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert all(len(case["quads"]) == 3 for r in found for case in r["cases"].values())
