"""Popular plugins and settings, each over a campaign, a gate and a race: right, or refused by name.

The plugins are installed once, into an environment of their own on top of this one.
"""

from __future__ import annotations

import json
import site
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from .. import nursery
from .paired import FASTER, OLD, PLAIN, Gate, kernel, write_paired
from .project import Project, Run

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
    "randomly": Guest("pytest-randomly", "addopts = -p no:asyncio\nfilterwarnings = error"),
    "disabled sockets": Guest("pytest-socket", words=("--disable-socket", "--allow-unix-socket")),
    "threads": Guest(
        "pytest-run-parallel",
        words=("--parallel-threads=2",),
        refused="kopt() was called a second time",
    ),
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
    "warnings are errors": Guest(ini="addopts = -p no:asyncio\nfilterwarnings = error"),
    "-W error": Guest(words=("-p", "no:asyncio", "-W", "error")),
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

TESTS = """
import torch
from kernels.plain import plain


@pytest.mark.kopt
@pytest.mark.parametrize("rows", [1, 2])
def test_plain(kopt, rows):
    kopt(
        plain,
        inputs=lambda: (torch.randn(rows, 8),),
        reference=lambda x: 2 * x.double(),
        dims={"rows": rows},
        domain="declared shapes",
    )
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter with all that this one imports, and whatever of the plugins there is."""
    home = tmp_path_factory.mktemp("plugins")
    subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    interpreter = home / "bin" / "python"
    names = ("purelib", "platlib")
    folders = dict.fromkeys([sysconfig.get_paths()[n] for n in names] + site.getsitepackages())
    more = [entry for entry in sys.path if entry.endswith("site-packages")]
    lines = "\n".join(dict.fromkeys([str(_REPOSITORY), *folders, *more]))
    (packages,) = home.glob("lib/python*/site-packages")
    (packages / "around.pth").write_text(lines + "\n")
    pip = [str(interpreter), "-m", "pip", "install", "-qq"]
    if subprocess.run([*pip, *INSTALLED], check=False).returncode:
        for name in INSTALLED:
            subprocess.run([*pip, name], check=False)
    nursery.INTERPRETERS.add(str(interpreter))
    return interpreter


def lacks(python: Path, distribution: str) -> bool:
    asks = f"import importlib.metadata as m; m.version({distribution!r})"
    return (
        subprocess.run([str(python), "-c", asks], capture_output=True, check=False).returncode > 0
    )


KERNELS = {
    "first": kernel(OLD, "first"),
    "faster": kernel(FASTER, "faster"),
    "equal": kernel(FASTER, "equal", factor="(1 + 1)"),
    "slower": kernel(OLD, "slower"),
    "wrong": kernel(FASTER / 2, "wrong", factor=2.01),
}
#: The sessions in their order: a version of the kernel, the words, and what they end with.
SESSIONS = {
    "baseline": ("first", ("--kopt-round", "1"), "BASELINE 0"),
    "faster": ("faster", ("--kopt-round", "2"), "ACCEPTED 0"),
    "wrong": ("wrong", ("--kopt-round", "3"), "REPAIR 1"),
    "slower": ("slower", ("--kopt-round", "3"), "ROLLED_BACK 8"),
    "gate slower": ("slower", ("--kopt-base=HEAD", "tests/test_plain.py"), "ROLLED_BACK 8"),
    "gate equal": ("equal", ("--kopt-base=HEAD", "tests/test_plain.py"), "ACCEPTED 0"),
    "race": (
        "faster",
        (
            *("--kopt-round", "4", "--kopt-candidates", "candidates/wrong"),
            *("--kopt-candidates", "candidates/fastest"),
        ),
        "ACCEPTED 0",
    ),
}


class Campaign:
    """A project with a campaign, and what its sessions end with."""

    def __init__(self, project: Project, python: Path, guest: Guest) -> None:
        self._gate, self._python, self._guest = Gate(project), str(python), guest
        write_paired(project)
        project.write(PLAIN, KERNELS["first"])
        project.write("tests/test_plain.py", f"import pytest\n{guest.test}{TESTS}")
        project.write("pytest.ini", f"[pytest]\npythonpath = . tests\n{guest.ini}\n")
        project.write(f"candidates/fastest/{PLAIN}", kernel(FASTER / 2, "fastest"))
        project.write(f"candidates/wrong/{PLAIN}", KERNELS["wrong"])
        if guest.conftest:
            project.write("conftest.py", guest.conftest)
        project.commit_all()
        words = ("--op", "c", "--kernel", PLAIN, "--backend", "TORCH", "--gpu", "cpu")
        run = self._run("pytest_kopt.cli", "init", "c", *words, "--tests", "tests/test_plain.py")
        assert run.code == 0, run.text

    def ends(self, version: str, *words: str) -> str:
        """Return the decision of a session on a version of the kernel, and its exit code."""
        self._gate.verdict.unlink(missing_ok=True)
        self._gate.project.write(PLAIN, KERNELS[version])
        more = (*self._guest.words, "--kopt-verdict", str(self._gate.verdict))
        run = self._run("pytest", *words, *more)
        assert "INTERNALERROR" not in run.text and "Traceback" not in run.text, run.text
        if self._guest.refused:
            assert run.code == 4 and self._guest.refused in run.text, run.text
            assert "REPAIR" not in run.text, run.text
            return "refused"
        assert self._gate.verdict.exists(), run.text
        return f"{json.loads(self._gate.verdict.read_text())['decision']} {run.code}"

    def _run(self, *words: str) -> Run:
        return self._gate.project.run(self._python, "-m", *words, **self._gate.variables())


@pytest.mark.parametrize("name", GUESTS)
def test_a_guest_changes_no_verdict(name: str, empty: Project, python: Path) -> None:
    guest = GUESTS[name]
    if guest.needs and lacks(python, guest.needs):
        pytest.skip(f"{guest.needs} cannot be installed here")
    campaign = Campaign(empty, python, guest)
    if guest.refused:
        sessions = {kind: (*SESSIONS[kind][:2], "refused") for kind in ("baseline", "gate slower")}
    else:
        sessions = SESSIONS
    ends = {kind: campaign.ends(version, *words) for kind, (version, words, _) in sessions.items()}
    assert ends == {kind: end for kind, (_, _, end) in sessions.items()}
