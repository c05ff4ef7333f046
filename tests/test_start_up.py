"""What a session does before its first process runs: who starts the parent, what forks are told."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from pytest_kopt import options
from pytest_kopt.cases.order import WorkerOrders
from pytest_kopt.cases.protocol import Begin, Leave, LoadVersions, Prepare, StopWorker
from pytest_kopt.cases.replies import CannotLoad, Collected, Reply, Timed
from pytest_kopt.options.declare import FROM_MANIFEST, SERVE
from pytest_kopt.processes.child import Child, ChildDied
from pytest_kopt.processes.launcher import Launcher
from pytest_kopt.processes.served import Serve

PACKAGE = Path(options.__file__).parents[1]

#: Rooms and packages that only the deciding process needs.
DECIDING = ("pytest_kopt.decide.verdict", "pytest_kopt.campaign", "pytest_kopt.knowledge", "yaml")
ORDERS = WorkerOrders("cpu", "auto", 1, 60.0, "standard")
BEGIN = Begin(ORDERS, [], [], [])


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Return the environments that parents are started in; none is."""
    asked: list[dict[str, str]] = []
    monkeypatch.setattr(
        Launcher, "warm", lambda self, env, directory, modules=(): asked.append(env)
    )
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    # These tests may be run by a worker of xdist's; what they parse is no worker's.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    return asked


@pytest.mark.parametrize(
    "words",
    [
        ("--kopt-round", "next", "--kopt-device", "cpu"),
        ("--kopt-base=HEAD", "--kopt-device=cpu"),
    ],
)
def test_the_parent_starts_before_anything_is_parsed(
    warmed: list[dict[str, str]], pytester: pytest.Pytester, words: tuple[str, ...]
) -> None:
    with pytest.raises(pytest.UsageError):
        pytester.parseconfig(*words, "--kopt-level", "none")
    assert warmed == [{"TRITON_INTERPRET": "1"}]


@pytest.mark.parametrize("words", [(), ("--kopt-campaign", "a"), ("--summary-csv", "rows.csv")])
def test_no_parent_starts_where_nothing_is_judged(
    warmed: list[dict[str, str]], pytester: pytest.Pytester, words: tuple[str, ...]
) -> None:
    pytester.parseconfig(*words)
    assert not warmed


def test_a_fork_starts_no_parent_of_its_own(
    warmed: list[dict[str, str]], pytester: pytest.Pytester
) -> None:
    pytester.plugins = [Serve(SimpleNamespace(), BEGIN, Path())]  # type: ignore[arg-type]
    assert pytester.parseconfig("--kopt-round", "next").pluginmanager.has_plugin(SERVE)
    assert not warmed


class Starter:
    """Starts a process that is told `sent` and says `reply`."""

    environ: ClassVar[dict[str, str]] = {}
    sys_path: ClassVar[list[str]] = []

    def __init__(self, reply: Reply | None = None) -> None:
        self.sent: list[Any] = []
        self.killed = 0
        self._reply = reply

    def start(self, env: dict[str, str], directory: str) -> Any:
        channel = SimpleNamespace(send=self.sent.append, receive=lambda: self._reply)
        process = SimpleNamespace(pid=1)
        return SimpleNamespace(process=process, channel=channel, log=None, kill=self.kill)

    def kill(self) -> None:
        self.killed += 1


def child_of(starter: Starter, root: Path, copy: tuple[Path, Path] | None = None) -> Child:
    config: Any = SimpleNamespace(
        stash=pytest.Stash(),
        rootpath=root,
        getoption=lambda name, default: default,
        invocation_params=SimpleNamespace(dir=root, args=("--kopt-campaign", "a", "-x")),
    )
    config.stash[FROM_MANIFEST] = [f"{root}/tests", "-k", "fast"]
    return Child(config, ORDERS, {}, None, copy, cast("Any", starter))


def test_a_process_that_says_something_else_ends_and_says_why(tmp_path: Path) -> None:
    """It counts as a death, of which a candidate has two."""
    for reply, why in (
        (CannotLoad("it is another's code"), "it is another's code"),
        (Collected([]), "sent Collected instead of Timed"),
    ):
        starter = Starter(reply)
        with pytest.raises(ChildDied, match=why):
            child_of(starter, tmp_path).expect(Timed)
        assert starter.killed == 1


def test_a_fork_is_told_what_the_manifest_asks_for(tmp_path: Path) -> None:
    """Of several campaigns it would not know which one: their options are not for it."""
    starter = Starter()
    child_of(starter, tmp_path, (tmp_path, tmp_path / "copy"))
    (begin,) = starter.sent
    assert begin.from_manifest == [f"{tmp_path}/copy/tests", "-k", "fast"]
    assert begin.pytest_args == ["-x"]
    words = ["-x"]
    channel: Any = None
    serve = Serve(channel, begin, Path())
    serve.pytest_load_initial_conftests(words)
    assert words == [f"{tmp_path}/copy/tests", "-k", "fast", "-x"]


def test_an_order_for_a_case_that_ended_without_it_is_passed_over() -> None:
    """A case of a replica that fails or is skipped never comes to what was asked of it."""
    ran: list[str] = []
    hook = SimpleNamespace(pytest_runtest_protocol=lambda item, nextitem: ran.append(item.nodeid))
    items = [SimpleNamespace(nodeid=name, config=SimpleNamespace(hook=hook)) for name in "ab"]
    first, second = (LoadVersions(name) for name in "ab")
    orders = iter([first, Leave(), second, Prepare([1]), StopWorker()])
    channel: Any = SimpleNamespace(receive=lambda: next(orders), send=lambda reply: None)
    session: Any = SimpleNamespace(items=items)
    assert Serve(channel, BEGIN, Path()).pytest_runtestloop(session)
    assert ran == ["a", "b"]


def test_what_runs_cases_loads_what_makes_findings_and_nothing_of_what_decides() -> None:
    """So that the first comes from what is installed, and a fork of the parent need not load it."""
    files = [*(PACKAGE / "honesty").rglob("*.py"), *(PACKAGE / "cases" / "running").rglob("*.py")]
    making = [path for path in files if "honesty.finding import" in path.read_text()]
    # Notes on sources are made where the round is decided.
    making.remove(PACKAGE / "honesty" / "audit.py")
    names = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in making]
    code = (
        "import importlib, sys\n"
        "from pytest_kopt.session.worker import _MEASURING\n"
        "assert 'torch' not in sys.modules\n"
        "for name in _MEASURING: importlib.import_module(name)\n"
        f"missing = [name for name in {names!r} if name not in sys.modules]\n"
        "import pytest_kopt.processes.served, pytest_kopt.session.assemble\n"
        "import pytest_kopt.cases.running.timed_versions, pytest_kopt.sameness.launches\n"
        f"print(missing, [name for name in {DECIDING!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[] []\n", done.stderr


def test_what_decides_loads_no_torch() -> None:
    """To import it takes seconds of every session, in which nothing else begins."""
    code = (
        "import sys, pytest_kopt.session.assemble, pytest_kopt.trials.measurements, "
        "pytest_kopt.trials.final, pytest_kopt.trials.rounds.race, "
        "pytest_kopt.trials.pull_request.against_base; "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_run_without_kopt_loads_little_more_than_the_options() -> None:
    code = (
        "import sys, pytest; from pytest_kopt import plugin; "
        "print(*(name for name in sys.modules if name.startswith('pytest_kopt.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {*done.stdout.split()} == {
        *(f"pytest_kopt.{name}" for name in ("options", "options.declare", "plugin")),
        *(f"pytest_kopt.{name}" for name in ("processes", "processes.bytecode")),
        *(f"pytest_kopt.session{name}" for name in ("", ".hookspecs")),
        "pytest_kopt.session.usage",
    }


CASE = """\
import sys

import pytest
import torch


def doubled(x):
    return x * 2


@pytest.mark.kopt(schema="memory")
def test_doubled(kopt):
    kopt(
        doubled,
        inputs=lambda: (torch.randn(64, 8, requires_grad=True),),
        reference=lambda x: 2 * x.double(),
        dims={"rows": 64},
        nbytes=4096,
        backward=True,
    )
    slow = {"sympy", "torch._dynamo"} & {*sys.modules}
    assert not slow, slow
"""


@pytest.mark.long
def test_a_check_of_gradients_loads_no_symbolic_algebra(tmp_path: Path) -> None:
    """torch's own calls of a backward do, which takes as long as a third of torch's import."""
    (tmp_path / "test_doubled.py").write_text(CASE)
    command = [sys.executable, "-m", "pytest", "-q", "--summary-csv", "out.csv"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
