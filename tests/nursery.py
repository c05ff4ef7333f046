"""Two processes that have imported what sessions need; they fork sessions and their processes.

Started as a script, once an interpreter for all processes that test. A fork of it begins where
`python -m pytest` and the processes of a session are after seconds; otherwise they are the same.
What is about a fresh interpreter itself (signals, imports, other libraries) starts one.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import re
import runpy
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, redirect_stdout, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, BinaryIO, NoReturn

#: What is imported before the first fork: by all, and by those that decide.
_RUNNING = (
    *("pytest", "_pytest.pytester", "torch", "triton", "torch._functorch.config"),
    *("numpy.random", "tomllib", "xdist.remote", "pytest_kopt.plugin"),
    *("pytest_kopt.processes.forking", "pytest_kopt.processes.served"),
    *("pytest_kopt.cases.running.timed_versions", "pytest_kopt.cases.running.judge_orders"),
    *("pytest_kopt.cases.running.run_case", "pytest_kopt.sameness.launches"),
    *("pytest_kopt.session.assemble", "pytest_kopt.session.arguments"),
    *("pytest_kopt.versions.executed_files", "pytest_kopt.standalone.bisection"),
    *("pytest_kopt.campaign.prerequisites", "pytest_kopt.cli.campaigns"),
)
_DECIDING = (
    *("pytest_kopt.session.controller", "pytest_kopt.session.supervisor"),
    *("pytest_kopt.session.xdist", "pytest_kopt.trials.opening"),
    *("pytest_kopt.trials.pull_request.against_base", "pytest_kopt.show.exports.publish"),
    *("pytest_kopt.paired.pairing", "pytest_kopt.show.terminal", "pytest_kopt.cli.main"),
    *("git", "scipy.special", "jinja2", "xdist.workermanage"),
)
#: What libraries read while they are loaded: everything forked has it so.
_AT_IMPORT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "OPENBLAS_NUM_THREADS": "1",
    "TRITON_INTERPRET": "1",
}
#: Read there as well, and set by a machine for all its processes.
_OF_MACHINES = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
_READ_AT_IMPORT = ("TRITON_", "OMP_", "OPENBLAS_", "MKL_", "LD_", "PYTORCH_", "CUDA_VISIBLE")
_BOOT = re.compile(
    r"(?:import sys; sys\.path\[:1\] = \['(.*)'\]; )?from (\S+) import (\w+); \w+\(\)"
)
#: In the environment of whatever they fork, and of workers that share them.
SOCKET = "TESTS_NURSERY"
#: Where one asks for a process that runs kernel code, and where for any other.
_RUNNER, _DECIDER = "runner", "decider"
#: In the environment of a run that has to be an interpreter of its own.
FRESH = {"TESTS_FRESH": "1"}
#: In that of one whose GPUs are not there: no runtime reads which it may see.
FAKE_GPUS = {"TESTS_FAKE_GPUS": "1"}
_MODULES = ("pytest", "pytest_kopt.cli")
#: Its functions begin processes that run kernel code.
_PROCESSES = "pytest_kopt.processes."
#: Interpreters whose pytest and kopt are forks; a test adds one with other packages.
INTERPRETERS = {sys.executable}


def fits(env: Mapping[str, str]) -> bool:
    """Say whether a process with this environment may be a fork."""
    names = [name for name in env if name.startswith(_READ_AT_IMPORT)]
    if FAKE_GPUS.keys() & env.keys():
        names = [name for name in names if not name.startswith("CUDA_VISIBLE")]
    early = {name: env[name] for name in names if env[name] and name not in _OF_MACHINES}
    return not (env.keys() & FRESH.keys() or early.items() - _AT_IMPORT.items())


def run(
    words: Sequence[str], *, cwd: Path, env: Mapping[str, str], timeout: float, check: bool = False
) -> subprocess.CompletedProcess[str]:
    """Run a command with its output captured: in a fork where it is pytest or kopt."""
    if order := _command(words, cwd, env):
        done = _completed(words, lambda *streams: _ask(address(words[0]), order, streams), timeout)
        if check:
            done.check_returncode()
        return done
    return subprocess.run(
        words,
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=check,
    )


def start(words: Sequence[str], cwd: Path, env: Mapping[str, str], out: int) -> Any:
    """Start pytest or kopt in a fork that prints to a descriptor; return the fork."""
    order = _command(words, cwd, env)
    assert order, words
    return _ask(address(words[0]), order, (out, out))


def tool(*words: str) -> str:
    """Return a shell script that is Python with these words, pytest and kopt in a fork."""
    command = shlex.join([sys.executable, __file__, *words])
    return f'#!/bin/sh\n{SOCKET}={address()} exec {command} "$@"\n'


def _command(words: Sequence[str], cwd: Path, env: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the order of a fork that is pytest, kopt or a script; None where no fork can be."""
    if words[0] not in INTERPRETERS or not fits(env):
        return None
    order = {"cwd": str(cwd), "env": dict(env)}
    if words[1].endswith(".py"):
        return {"script": words[1], "argv": list(words[2:]), **order}
    if words[1] == "-m" and words[2] in _MODULES:
        return {"module": words[2], "argv": list(words[3:]), **order}
    if words[1] == "-c" and (entry := _entry(words[2])):
        return {"entry": entry, "argv": list(words[3:]), **order}
    return None


def _entry(code: str) -> Sequence[str | None] | None:
    """Return where one of the plugin's own processes begins, None of any other process."""
    found = _BOOT.fullmatch(code)
    return found and found.groups()


def _runs_kernels(order: Mapping[str, Any]) -> bool:
    return "entry" in order and order["entry"][1].startswith(_PROCESSES)


def _completed(
    words: Sequence[str], start: Callable[[int, int], Any], timeout: float | None
) -> subprocess.CompletedProcess[str]:
    """Start a process with files for its output and wait for its end."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = start(out.fileno(), err.fileno())
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            raise
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(words, code, *texts)


@cache
def address(python: str = sys.executable) -> str:
    """Return where an interpreter's processes that fork listen; start them where nobody has.

    Processes that this one starts find those of its own interpreter.
    """
    if python == sys.executable and SOCKET in os.environ:
        return os.environ[SOCKET]
    directory = tempfile.mkdtemp(prefix="nursery-")
    with ExitStack() as stack:
        listeners = []
        for name in (_RUNNER, _DECIDER):
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            listeners.append(stack.enter_context(listener))
            listener.bind(f"{directory}/{name}")
            listener.listen(64)
        strange = ("PYTEST_", "KOPT_", "PYTHONPATH", *_READ_AT_IMPORT)
        env = {name: text for name, text in os.environ.items() if not name.startswith(strange)}
        process = subprocess.Popen(
            [python, __file__, *(str(listener.fileno()) for listener in listeners)],
            env={**env, **_AT_IMPORT, SOCKET: directory},
            pass_fds=[listener.fileno() for listener in listeners],
            start_new_session=True,
        )

    def end() -> None:
        process.kill()
        process.wait()
        shutil.rmtree(directory)

    atexit.register(end)
    if python == sys.executable:
        os.environ[SOCKET] = directory
    return directory


def _ask(where: str, order: Mapping[str, Any], descriptors: Sequence[int]) -> Any:
    from pytest_kopt.processes.launcher import Fork

    return Fork(*_begun(where, order, descriptors))


def _begun(where: str, order: Mapping[str, Any], descriptors: Sequence[int]) -> tuple[int, int]:
    """Return the id of a fork, and a descriptor that its exit status is going to be read from."""
    status, theirs = os.pipe()
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asking:
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            runs = "worker" in order or _runs_kernels(order)
            asking.connect(f"{where}/{_RUNNER if runs else _DECIDER}")
            socket.send_fds(asking, [json.dumps(order).encode()], [theirs, *descriptors])
            return json.loads(asking.recv(4096))["pid"], status
    finally:
        os.close(theirs)


def _popen(words: Sequence[str], **given: Any) -> Any:
    """Start a process of a session: a fork where it is one of the plugin's own."""
    if list(words[:2]) != [sys.executable, "-c"] or not fits(given["env"]):
        return subprocess.Popen(words, **given)
    entry = _entry(words[2])
    # An interpreter in its place runs as well, and imports torch in every session.
    assert entry, words
    passed = list(given.get("pass_fds", ()))
    argv = [str(passed.index(int(w))) if passed and w.isdecimal() else w for w in words[3:]]
    order: dict[str, Any] = {"entry": entry, "argv": argv}
    order |= {"env": dict(given["env"]), "cwd": str(given["cwd"])}
    with open(os.devnull, "r+b") as nothing:
        out = _descriptor(given["stdout"], 1, nothing)
        err = given["stderr"]
        err = out if err == subprocess.STDOUT else _descriptor(err, 2, nothing)
        if first := given.get("preexec_fn"):
            return _Child(order, (out, err, *passed), first)
        return _ask(address(), order, [out, err, *passed])


class _Child(subprocess.Popen[bytes]):
    """A child of this process, forked from it: something is to be done to it before it begins."""

    def __init__(
        self, order: Mapping[str, Any], descriptors: Sequence[int], first: Callable[[], None]
    ) -> None:
        self._begin = order, descriptors, first
        super().__init__([])

    def _execute_child(self, *_: Any) -> None:
        order, descriptors, first = self._begin
        self.pid = os.fork()
        if self.pid == 0:
            atexit._clear()
            first()
            _become(order, *map(os.dup, descriptors))
        self._child_created = True


def _relayed(start: Callable[..., Any]) -> Callable[..., Any]:
    def relayed(words: Sequence[str], **given: Any) -> Any:
        at = words.index(sys.executable) + 1
        return start([*words[:at], __file__, *words[at:]], **given)

    return relayed


#: In the place of `subprocess` where a module starts the plugin's own processes.
STARTING = SimpleNamespace(
    Popen=_popen,
    run=subprocess.run,
    call=lambda words, cwd: _call(words, cwd),
    DEVNULL=subprocess.DEVNULL,
    STDOUT=subprocess.STDOUT,
    TimeoutExpired=subprocess.TimeoutExpired,
)
#: The same where what is started has pipes, or where git starts it: a script asks for the fork.
RELAYING = SimpleNamespace(
    Popen=_relayed(subprocess.Popen),
    run=_relayed(subprocess.run),
    DEVNULL=subprocess.DEVNULL,
    PIPE=subprocess.PIPE,
)


def _descriptor(stream: Any, own: int, nothing: BinaryIO) -> int:
    if stream is None:
        return own
    return int((nothing if stream == subprocess.DEVNULL else stream).fileno())


def _call(words: Sequence[str], cwd: Path) -> int:
    """Run a command with the streams of this process and return its exit code.

    That may be a worker of execnet's. The command gets the signals that this process gets. Nothing
    of the package is imported, which takes longer than the rest.
    """
    order = _command(words, cwd, os.environ)
    if is_worker := words[1] == "-u" and fits(os.environ):
        order = {"worker": words[-1], "cwd": str(cwd), "env": dict(os.environ)}
    if order is None:
        process = subprocess.Popen(words, cwd=cwd)
        _hand_signals_to(process.pid)
        return process.wait()
    pid, status = _begun(os.environ[SOCKET], order, (1, 2, 0) if is_worker else (1, 2))
    if not is_worker:
        _hand_signals_to(pid)
    with open(status, "rb") as stream:
        told = stream.read()
    # Nothing is told of one that ended with the nursery.
    return int.from_bytes(told, sys.byteorder, signed=True) if told else -signal.SIGKILL


def _hand_signals_to(pid: int) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: os.kill(pid, number))


def _have_workers_forked() -> None:
    """Start xdist's workers on this host as forks, where nothing leads their interpreters."""
    with suppress(ImportError):
        master = importlib.import_module("execnet.gateway_io").Popen2IOMaster
        start = master.__init__

        def fork(ways: Any, words: Sequence[str], execmodel: Any) -> None:
            if words[0] != sys.executable or not fits(os.environ):
                start(ways, words, execmodel)
                return
            (source, sink), (answers, answering) = os.pipe(), os.pipe()
            order = {"worker": words[-1], "cwd": os.getcwd(), "env": dict(os.environ)}
            ways.popen = _ask(os.environ[SOCKET], order, [answering, 2, source])
            for descriptor in (answering, source):
                os.close(descriptor)
            streams = os.fdopen(sink, "wb"), os.fdopen(answers, "rb")
            super(master, ways).__init__(*streams, execmodel=execmodel)

        master.__init__ = fork
        # As at the start of an interpreter: workers import from here.
        vars(importlib.import_module("xdist.workermanage"))["_sys_path"] = list(sys.path)


def main() -> None:
    """Import, then fork for whoever asks; or be one of the commands."""
    if sys.argv[1].startswith("-"):
        sys.exit(_call([sys.executable, *sys.argv[1:]], Path.cwd()))
    from pytest_kopt.process_tree import end_with_parent
    from pytest_kopt.processes.forking import reap, wakes_when_forks_end

    end_with_parent()
    sys.path.remove(str(Path(__file__).parent))
    gc.disable()
    _import(_RUNNING)
    _have_package_be_a_library()
    importlib.import_module("pytest_kopt.processes.channel").prepare()
    for name, remembering in installed_once().items():
        setattr(metadata.Distribution, name, remembering)
    _load_plugins()
    _remember_plugins()
    _remember_config()
    importlib.import_module("pytest_kopt.libraries").set_libraries_aside()
    # Forks end without taking torch's libraries apart.
    vars(weakref.finalize)["_registry"].clear()
    gc.freeze()
    _collapse_pages()
    listeners = [socket.socket(fileno=int(number)) for number in sys.argv[1:]]
    decides = os.fork() == 0
    if decides:
        end_with_parent()
        _import(_DECIDING)
        _load_templates()
        importlib.import_module("pytest_kopt.libraries").set_libraries_aside()
        gc.freeze()
        _collapse_pages()
    gc.enable()
    listener = listeners.pop(decides)
    listeners.pop().close()
    waking, wake = wakes_when_forks_end()
    children: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([listener.fileno(), waking], [], [])
        if waking in ready:
            reap(waking, children)
        if listener.fileno() in ready:
            _serve(listener, (waking, wake), children)


def _import(names: Sequence[str]) -> None:
    for name in names:
        with suppress(ImportError):
            importlib.import_module(name)


def _have_package_be_a_library() -> None:
    """Have the plugin's modules be those of an installed package, as they are for users.

    In an editable install forks would look into each of them, and copy its page.
    """
    libraries = importlib.import_module("pytest_kopt.libraries")
    vars(libraries)["_ELSEWHERE"] += ("pytest_kopt",)
    vars(libraries)["is_library"].cache_clear()


@cache
def installed_once() -> dict[str, Any]:
    """Return properties of distributions that read what is installed once, not each session."""
    installed = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
    remembering = {}
    for name in ("entry_points", "files", "metadata"):
        asked = vars(metadata.Distribution)[name].fget
        once = cache(lambda path, asked=asked: asked(metadata.PathDistribution(path)))

        def answer(package: Any, asked: Any = asked, once: Any = once) -> Any:
            path = getattr(package, "_path", None)
            is_installed = path is not None and str(path).startswith(installed)
            return once(path) if is_installed else asked(package)

        remembering[name] = property(answer)
    return remembering


def _load_plugins() -> None:
    """Have pytest import what it loads in every session: itself, since it rewrites plugins.

    What every case looks up of the libraries and of hardware, and how its result is written and
    read, is looked up as well.
    """
    from pytest_kopt import models
    from pytest_kopt.cases.order import WorkerOrders
    from pytest_kopt.cases.result import CaseResult, ExpectedCase
    from pytest_kopt.processes import channel

    with tempfile.TemporaryDirectory() as empty, redirect_stdout(io.StringIO()):
        importlib.import_module("pytest").main(["-p", "no:kopt", "-c", os.devnull, empty])
        importlib.import_module("pytest_kopt.versions.affected_modules").project_modules(
            Path(empty)
        )
        importlib.import_module("pytest_kopt.knowledge.facts").product_of("cpu")
        messages = {**channel._ORDERS, **channel._REPLIES}.values()
        for kind in (CaseResult, ExpectedCase, WorkerOrders, *messages):
            models._adapter(kind)


def _load_templates() -> None:
    """Have the documents' templates be compiled once, not in each session that writes some."""
    environment = importlib.import_module("pytest_kopt.show.templates")._environment()
    for name in environment.list_templates(extensions=["j2"]):
        environment.get_template(name)


def _remember_plugins() -> None:
    """Have plugins that are loaded by now be looked through for fixtures once, not each session.

    Nor does each session hold every name of a plugin's package against all modules.
    """
    from _pytest.assertion.rewrite import AssertionRewritingHook
    from _pytest.fixtures import FixtureFunctionDefinition, FixtureManager

    def fixtures_of(holder: Any) -> dict[str, Any]:
        named = {name: value for kind in kinds_of(holder) for name, value in vars(kind).items()}
        return {n: value for n, value in named.items() if type(value) is FixtureFunctionDefinition}

    def kinds_of(holder: Any) -> Sequence[Any]:
        return holder.__mro__ if isinstance(holder, type) else [holder]

    modules = [module for module in [*sys.modules.values()] if isinstance(module, ModuleType)]
    classes = {
        kind
        for module in modules
        if module.__name__.startswith(("_pytest.", "pytest_kopt.", "xdist."))
        for kind in [*vars(module).values()]
        if isinstance(kind, type) and kind.__module__ == module.__name__ and not fixtures_of(kind)
    }
    # A module of its fixtures alone; None without any.
    parts: dict[int, ModuleType | None] = {}
    for module in modules:
        parts[id(module)] = None
        if fixtures := fixtures_of(module):
            parts[id(module)] = part = ModuleType(module.__name__)
            vars(part).update(fixtures)
    parse, mark = FixtureManager.parsefactories, AssertionRewritingHook.mark_rewrite

    def parsefactories(manager: Any, *given: Any, **named: Any) -> None:
        holder = named["holder"] if "holder" in named else given[0]
        if type(holder) in classes and (named or len(given) > 1):
            return
        part = parts.get(id(holder), holder)
        if part is None:
            return
        if "holder" in named:
            parse(manager, *given, **{**named, "holder": part})
        else:
            parse(manager, part, *given[1:], **named)

    loaded = {*sys.modules}

    def mark_rewrite(hook: Any, *names: str) -> None:
        if late := [name for name in names if name in sys.modules and name not in loaded]:
            mark(hook, *late)
        hook._must_rewrite.update(names)
        hook._marked_for_rewrite_cache.clear()

    FixtureManager.parsefactories = parsefactories  # type: ignore[method-assign, assignment]
    AssertionRewritingHook.mark_rewrite = mark_rewrite  # type: ignore[method-assign, assignment]


def _collapse_pages() -> None:
    """Have the system keep what is imported in large pages, whose tables a fork copies sooner."""
    import ctypes

    libc, large = ctypes.CDLL(None, use_errno=True), 1 << 21
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, _, _, inode, *_ = line.split()
        first, last = (int(end, 16) for end in place.split("-"))
        first, last = -(-first // large) * large, last // large * large
        if rights == "rw-p" and inode == "0" and first < last:
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), 25)


def _remember_config() -> None:
    """Have pytest's own plugins be registered, and their options be declared, before the fork."""
    from _pytest import config as pytests

    make, made = pytests.get_config, [pytests.get_config()]

    def get_config(args: Any = None, plugins: Any = None, **named: Any) -> Any:
        if not made:
            return make(args, plugins, **named)
        config, words = made.pop(), tuple(args or ())
        config.invocation_params = config.InvocationParams(
            args=words, plugins=plugins, dir=Path.cwd()
        )
        if "prog" in named:
            config._parser.prog = named["prog"]
        config.pluginmanager.consider_preparse(words, exclude_only=True)
        return config

    pytests.get_config = get_config


def _serve(listener: socket.socket, pipes: tuple[int, int], children: dict[int, int]) -> None:
    asking, _ = listener.accept()
    with asking:
        asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        text, descriptors, _, _ = socket.recv_fds(asking, 1 << 20, 16, socket.MSG_CMSG_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            asking.close()
            for descriptor in (listener.detach(), *pipes, descriptors[0], *children.values()):
                os.close(descriptor)
            _become(json.loads(text), *descriptors[1:])
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        children[pid] = descriptors[0]
        asking.send(json.dumps({"pid": pid}).encode())


def _become(order: Mapping[str, Any], out: int, err: int, *passed: int) -> NoReturn:
    """Be the process that was asked for."""
    code: object = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        own = os.environ[SOCKET]
        os.environ.clear()
        os.environ.update(order["env"])
        os.environ[SOCKET] = own
        sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
        tempfile.tempdir = None
        os.chdir(order["cwd"])
        added = [entry for entry in order["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
        for target, source in ((1, out), (2, err)):
            os.dup2(source, target)
            os.close(source)
        if os.environ.get("PYTHONUNBUFFERED"):
            # Both streams may share a file.
            stdout = os.fdopen(1, "wb", buffering=0, closefd=False)
            sys.stdout = io.TextIOWrapper(stdout, sys.stdout.encoding, write_through=True)
        from pytest_kopt.cli import campaigns
        from pytest_kopt.processes import forking, launched, launcher
        from pytest_kopt.standalone import bisection, child_session

        forking.differ()
        for module in (launched, launcher, child_session, campaigns):
            vars(module)["subprocess"] = STARTING
        vars(bisection)["subprocess"] = RELAYING
        if "worker" in order:
            os.dup2(passed[0], 0)
            sys.stdin = os.fdopen(0)
            _be_at("", added)
            sys.argv[:] = ["-c"]
            exec(order["worker"], {"__name__": "__main__"})
            code = 0
        elif "entry" in order:
            start, module, function = order["entry"]
            if _runs_kernels(order):
                os.setsid()
            else:
                _have_workers_forked()
            _be_at(start or "", added)
            argv = [str(passed[int(w)]) if passed and w.isdecimal() else w for w in order["argv"]]
            sys.argv[:] = ["-c", *argv]
            getattr(importlib.import_module(module), function)()
            code = 0
        elif "script" in order:
            _be_at(str(Path(order["script"]).resolve().parent), added)
            _have_workers_forked()
            sys.argv[:] = [order["script"], *order["argv"]]
            runpy.run_path(order["script"], run_name="__main__")
            code = 0
        else:
            _be_at(os.getcwd(), added)
            _have_workers_forked()
            sys.argv[:] = [order["module"], *order["argv"]]
            runpy.run_module(order["module"], run_name="__main__", alter_sys=True)
            code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
    if isinstance(code, str):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(code or 0))  # type: ignore[call-overload]


def _be_at(start: str, added: Sequence[str]) -> None:
    """Look for modules as an interpreter does that is started here, its own `site` included."""
    sys.path[:0] = [start, *added]
    if added:
        sys.modules.pop("sitecustomize", None)
        with suppress(ModuleNotFoundError):
            importlib.import_module("sitecustomize")


if __name__ == "__main__":
    main()
