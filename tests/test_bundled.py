from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

from pytest_kopt.bundled import bundled

REPOSITORY = Path(__file__).parents[1]


def test_a_source_tree_has_the_folder_beside_the_package() -> None:
    assert bundled("knowledge") == REPOSITORY / "knowledge"


def test_an_installation_has_it_inside_the_package(tmp_path: Path) -> None:
    inside = tmp_path / "pytest_kopt" / "bundled" / "knowledge"
    inside.mkdir(parents=True)
    (tmp_path / "knowledge").mkdir()
    assert bundled("knowledge", tmp_path / "pytest_kopt") == inside


def test_a_folder_that_is_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder 'recipes'"):
        bundled("recipes", tmp_path)


@pytest.mark.long
def test_an_installed_wheel_answers_from_its_own_copy(tmp_path: Path) -> None:
    """The dependencies are this environment's; the package is the wheel's alone."""
    pip = [sys.executable, "-m", "pip"]
    wheels = tmp_path / "wheels"
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", wheels, REPOSITORY], check=True)
    (wheel,) = wheels.glob("*.whl")
    venv.create(tmp_path / "venv", system_site_packages=False, with_pip=False)
    site = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", site, wheel], check=True)
    code = (
        "import pytest_kopt; from pytest_kopt.knowledge.facts import Facts; "
        "print(pytest_kopt.__file__); "
        "print(Facts().fact('hbm_bandwidth', 'sm_90', 'H200').citation())"
    )
    paths = [entry for entry in sys.path if entry and Path(entry).resolve() != REPOSITORY]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:] = {[str(site), *paths]!r}; {code}"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
        check=True,
    )
    where, citation = done.stdout.splitlines()
    assert Path(where).is_relative_to(site)
    assert citation.startswith("hbm_bandwidth: 4.8 TB/s <- ")
