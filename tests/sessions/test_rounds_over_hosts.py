"""Two hosts that are one: `srun` and `ssh` are scripts that name the host and start Python here."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from .. import nursery
from ..fake_gpus import FakeDriver
from .paired import CASE, CASES, OLD, Gate, Gated, kernel, project_at
from .project import Project
from .test_pinning import faster_round

#: Stands for Slurm's: `srun -w NODE COMMAND`.
SRUN = """\
#!/bin/sh
export SLURMD_NODENAME=$2
if [ -f "$0.$2" ]; then . "$0.$2"; fi
shift 2
exec "$@"
"""
#: Stands for OpenSSH's, with a home directory for each host: `ssh -C HOST COMMAND`.
SSH = """\
#!/bin/sh
export SLURMD_NODENAME=$2
cd {homes}/$2
export PYTHONPATH={homes}/$2/pyexecnetcache/project
mkdir -p $PYTHONPATH
shift 2
exec sh -c "$*"
"""
#: A version says where it ran, and from which file.
WHO = '{who} " + os.environ["SLURMD_NODENAME"] + " " + __file__ + "'
NODES = ("node1", "node2")


def version(name: str, who: str, cost: float) -> str:
    return kernel(cost, WHO.format(who=f"{name} {who}"), name=name, imports="import os")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Two cases, one for each host, whose kernels have become faster."""
    project = project_at(tmp_path / "project")
    for name in ("plain", "other"):
        project.write(f"kernels/{name}.py", version(name, "old", OLD))
    both = [CASE.format(module=f"kernels.{n}", name=n, rows=1) for n in ("plain", "other")]
    project.write("tests/test_plain.py", CASES + "".join(both))
    project.commit_all("Say where it ran")
    for name in ("plain", "other"):
        project.write(f"kernels/{name}.py", version(name, "new", 187.5))
    return project


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def ran_at(done: Gated) -> dict[str, set[tuple[str, str, str]]]:
    """Return by kernel which version ran on which host, from which file."""
    found = defaultdict(set)
    for who, _ in done.trace:
        name, version, node, path = who.split(" ")
        found[name].add((version, node, path))
    return found


def expect_each_at_home(done: Gated) -> dict[str, set[tuple[str, str, str]]]:
    """See that each case's versions were compared on one host, and each host had one."""
    assert done.run.code == 0, done.run.text
    assert done.judged["decision"] == "ACCEPTED", done.run.text
    assert done.judged["flags"] == [], "every process was a fork of its host's parent"
    found = ran_at(done)
    assert {(version, node) for version, node, _ in found["plain"]} in [
        {("old", node), ("new", node)} for node in NODES
    ]
    nodes = {node for seen in found.values() for _, node, _ in seen}
    assert nodes == {*NODES}
    return found


def test_a_case_is_compared_on_the_node_that_measured_it(project: Project, tmp_path: Path) -> None:
    srun = script(tmp_path / "bin" / "srun", SRUN)
    python = script(tmp_path / "bin" / "python", nursery.tool())
    words = [f"--tx=popen//python={srun} -w {node} {python}" for node in NODES]
    expect_each_at_home(Gate(project)(*words, "--dist=load"))


@pytest.mark.long
def test_over_ssh_each_host_works_in_its_own_copy(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = tmp_path / "homes"
    for node in NODES:
        (homes / node).mkdir(parents=True)
    ssh = script(tmp_path / "bin" / "ssh", SSH.format(homes=homes))
    monkeypatch.setenv("PATH", f"{ssh.parent}:{os.environ['PATH']}")
    words = [f"--tx=ssh={node}//python={sys.executable}" for node in NODES]
    root = str(project.root)
    done = Gate(project)(*words, "--dist=load", "--rsyncdir", root)
    for seen in expect_each_at_home(done).values():
        for version, node, path in seen:
            own = path.startswith(str(homes / node))
            assert own or (version == "old" and "kopt-trees-" in path), path


@pytest.mark.long
def test_a_campaign_on_the_gpus_of_two_hosts(empty: Project, tmp_path: Path) -> None:
    """Every case and its replicas on the GPU that a worker on its host was given."""
    srun = script(tmp_path / "bin" / "srun", SRUN)
    uuids = {}
    for place, node in enumerate(NODES):
        driver = FakeDriver(tmp_path / node, 2, first=8 * place)
        uuids[node] = driver.uuids[1]
        path = f"export PYTHONPATH={driver.directory}:{empty.root}"
        script(tmp_path / "bin" / f"srun.{node}", f"{path} CUDA_VISIBLE_DEVICES=1\n")
    tx = [f"--tx=popen//python={srun} -w {node} {sys.executable}" for node in NODES]
    _, _, devices = faster_round(empty, *tx, "--dist=load")
    assert set.union(*devices.values()) == set(uuids.values())
