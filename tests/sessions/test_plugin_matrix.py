"""Popular plugins and settings, each over a campaign, a gate and a race: right, or refused by name.

The plugins are installed once, into an environment of their own on top of this one.
"""

from __future__ import annotations

import site
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from .project import Project

pytestmark = pytest.mark.long

_REPOSITORY = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Guest:
    """What a project has besides its cases.

    `needs` is the distribution of a plugin, `ini` what stands in pytest.ini, `words` what is said
    on each command line, `conftest` and `test` what is added to those files, `refused` what is told
    with exit code 4 where kopt does not run with it.
    """

    needs: str = ""
    ini: str = ""
    words: tuple[str, ...] = ()
    conftest: str = ""
    test: str = ""
    refused: str = ""


_SESSION = "import pytest\n\n\n@pytest.fixture(autouse=True, scope='session')\n"
GUESTS = {
    # Plugins.
    "reruns installed": Guest("pytest-rerunfailures"),
    "reruns used": Guest("pytest-rerunfailures", "addopts = --reruns 2"),
    "timeout thread": Guest("pytest-timeout", "timeout = 1\ntimeout_method = thread"),
    "timeout signal": Guest("pytest-timeout", "timeout = 1\ntimeout_method = signal"),
    "forked": Guest("pytest-forked", "addopts = --forked"),
    "reportlog": Guest("pytest-reportlog", words=("--report-log=report.jsonl",)),
    "allure": Guest(
        "allure-pytest",
        "addopts = --strict-markers",
        ("--alluredir=allure",),
        test="import allure\npytestmark = allure.feature('doubling')\n",
    ),
    "cov": Guest("pytest-cov", words=("--cov=.", "--cov-fail-under=100")),
    "randomly": Guest("pytest-randomly"),
    "html": Guest("pytest-html", words=("--html=report/report.html",)),
    "sugar": Guest("pytest-sugar"),
    "mock": Guest("pytest-mock", test="def test_mock(mocker): mocker.stub()\n"),
    "asyncio": Guest("pytest-asyncio", "asyncio_mode = auto", test="async def test_wait(): ...\n"),
    "env": Guest(
        "pytest-env",
        "env =\n    OURS=1",
        conftest="import os\nassert os.environ['OURS'] == '1'\n",
    ),
    "subtests": Guest("pytest-subtests", test="def test_parts(subtests): ...\n"),
    "instafail": Guest("pytest-instafail", words=("--instafail",)),
    "benchmark": Guest("pytest-benchmark", "addopts = --benchmark-autosave"),
    "hypothesis": Guest("hypothesis", "addopts = --hypothesis-show-statistics"),
    "xdist": Guest("pytest-xdist", words=("-n", "2")),
    "all": Guest("pytest-rerunfailures", "addopts = --strict-markers", ("--html=r.html", "-x")),
    # Settings.
    "log_file": Guest(ini="log_file = tests.log\nlog_cli = true"),
    "junit": Guest(words=("--junit-xml=junit.xml",)),
    "debug": Guest(words=("--debug",)),
    "warnings are errors": Guest(ini="filterwarnings = error"),
    "-W error": Guest(words=("-W", "error")),
    "-x": Guest(ini="addopts = -x"),
    "strict": Guest(ini="addopts = --strict-markers --strict-config"),
    "last failed": Guest(words=("--ff",)),
    "importlib": Guest(ini="addopts = --import-mode=importlib"),
    "no cache": Guest(words=("-p", "no:cacheprovider")),
    "basetemp": Guest(words=("--basetemp=temporary",)),
    "the cache": Guest(
        conftest=f"{_SESSION}def note(pytestconfig): pytestconfig.cache.set('a', 1)\n"
    ),
    "a file": Guest(
        conftest=f"{_SESSION}def note(): open('note.txt', 'w').close()\n",
        refused="conftest.py:5: kopt refused it",
    ),
    "a socket": Guest(
        conftest=f"import socket\n{_SESSION}def ring():\n    socket.socket()\n",
        refused="conftest.py:7: kopt refused it",
    ),
}
INSTALLED = sorted({guest.needs for guest in GUESTS.values() if guest.needs})

KERNELS = {
    "first": "import torch\n\n\ndef doubled(x):\n    return torch.stack([row * 2 for row in x])\n",
    "faster": "def doubled(x):\n    return x * 2\n",
    "wrong": "def doubled(x):\n    return x * 2.01\n",
}
TESTS = """
import torch
from kernel import doubled


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize("rows", [64, 128])
def test_doubled(kopt, rows):
    kopt(
        doubled,
        inputs=lambda: (torch.randn(rows, 512),),
        reference=lambda x: x.double() * 2,
        dims={"rows": rows},
        nbytes=8 * rows * 512,
    )
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with all that this one imports, and whatever of the plugins there is."""
    home = tmp_path_factory.mktemp("plugins")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    found = home / "bin" / "python"
    names = ("purelib", "platlib")
    folders = dict.fromkeys([sysconfig.get_paths()[n] for n in names] + site.getsitepackages())
    more = [entry for entry in sys.path if entry.endswith("site-packages")]
    lines = "\n".join(dict.fromkeys([str(_REPOSITORY), *folders, *more]))
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "around.pth").write_text(lines + "\n")
    pip = [str(found), "-m", "pip", "install", "-qq"]
    if subprocess.run([*pip, *INSTALLED], check=False).returncode:
        for name in INSTALLED:
            subprocess.run([*pip, name], check=False)
    return found


def lacks(python: Path, distribution: str) -> bool:
    asks = f"import importlib.metadata as m; m.version({distribution!r})"
    return (
        subprocess.run([str(python), "-c", asks], capture_output=True, check=False).returncode > 0
    )


def codes(project: Project, python: Path, guest: Guest) -> dict[str, int]:
    """Return the exit codes of a baseline, a race, a wrong round and a gate on a slower one."""
    found: dict[str, int] = {}

    def run(name: str, *words: str) -> None:
        done = project.run(str(python), "-m", "pytest", *words, *guest.words)
        found[name] = done.code
        assert "INTERNALERROR" not in done.text and "Traceback" not in done.text, done.text
        if guest.refused:
            assert guest.refused in done.text, done.text

    project.write("kernel.py", KERNELS["first"])
    project.write("test_kernel.py", f"import pytest\n{guest.test}{TESTS}")
    project.write("pytest.ini", f"[pytest]\npythonpath = .\n{guest.ini}\n")
    project.write("candidates/faster/kernel.py", KERNELS["faster"])
    project.write(".gitignore", "agent/\n*.log\n__pycache__/\n")
    if guest.conftest:
        project.write("conftest.py", guest.conftest)
    project.commit_all()
    kopt = (str(python), "-m", "pytest_kopt.cli")
    words = ("--op", "c", "--kernel", "kernel.py", "--backend", "TORCH", "--gpu", "cpu")
    done = project.run(*kopt, "init", "c", *words, "--tests", "test_kernel.py")
    assert done.code == 0, done.text
    run("baseline", "--kopt-campaign", "c", "--kopt-round", "1")
    if guest.refused:
        return found
    run("race", "--kopt-round", "next", "--kopt-candidates", "candidates/faster")
    project.write("kernel.py", KERNELS["wrong"])
    run("wrong", "--kopt-round", "next")
    project.write("kernel.py", KERNELS["first"])
    run("gate", "--kopt-base=HEAD", "test_kernel.py")
    return found


@pytest.mark.parametrize("name", GUESTS)
def test_a_guest_changes_no_verdict(name: str, empty: Project, python: Path) -> None:
    guest = GUESTS[name]
    if guest.needs and lacks(python, guest.needs):
        pytest.skip(f"{guest.needs} cannot be installed here")
    found = codes(empty, python, guest)
    expected = {"baseline": 0, "race": 0, "wrong": 1, "gate": 8}
    assert found == ({"baseline": 4} if guest.refused else expected)
