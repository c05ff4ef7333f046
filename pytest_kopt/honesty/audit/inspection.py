"""Looking at who is calling, and at what measures: a kernel has its arguments to look at."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kopt.honesty.audit.suspicion import Evidence, Suspicion
from pytest_kopt.honesty.audit.trace import Call, Read, Site
from pytest_kopt.honesty.audit.values import Value
from pytest_kopt.honesty.audit.vocabulary import names

_STACK = names(
    "sys._getframe sys._current_frames sys._getframemodulename inspect.stack inspect.currentframe"
    " inspect.getouterframes inspect.getinnerframes inspect.trace traceback.extract_stack"
    " traceback.format_stack traceback.walk_stack"
)
_HEAP = names(
    "gc.get_objects gc.get_referrers gc.get_referents gc.isenabled gc.get_threshold gc.get_count"
    " gc.callbacks sys.getprofile sys.gettrace"
)
_INTERPRETER = names("ctypes.pythonapi ctypes.py_object ctypes.PYFUNCTYPE ctypes.PyDLL")
_HARNESS = names("_pytest pytest_kopt pluggy xdist pytest_benchmark execnet")
#: What a kernel's file that holds its own tests needs of pytest.
_MARKING = names("mark param fixture skip raises importorskip approx main warns fail")
#: Variables that only the harness sets begin with, or hold, one of these.
_VARIABLES = "PYTEST", "KOPT", "XDIST"
_ENVIRONMENT = "os.environ", "os.getenv", "os.environb", "os.putenv"
_WALKS = frozenset(f"builtins.{n}" for n in ("list", "dict", "tuple", "sorted", "iter", "set"))
_ADVICE = "decide from the arguments: their sizes, dtypes, strides and device"


def suspicions(evidence: Evidence) -> Iterator[Suspicion]:
    """Yield looks at the stack, the heap, the command line, the environment and the harness."""
    trace = evidence.trace
    for read in trace.reads:
        found = _read(read)
        if read.name in _COLLECTOR and _puts_back(evidence, read.site):
            continue
        if found and evidence.runs(read.site):
            yield _suspicion(found, read.site)
    for call in trace.calls:
        found = _call(call)
        if found and evidence.runs(call.site):
            yield _suspicion(found, call.site)
    for comparison in trace.comparisons:
        named = any(_names_harness(operand) for operand in comparison.operands)
        if not named or not evidence.runs(comparison.site):
            continue
        if any(_of_environment(operand) for operand in comparison.operands):
            yield _suspicion("harness-environment", comparison.site)
        if any("sys.modules" in operand.externals for operand in comparison.operands):
            yield _suspicion("module-table", comparison.site)


_COLLECTOR = frozenset({"gc.isenabled", "gc.get_threshold"})


def _puts_back(evidence: Evidence, site: Site) -> bool:
    """Say whether the same function sets the collector as it found it."""
    return evidence.calls(site, "gc.enable", "gc.set_threshold")


_MESSAGES = {
    "stack-inspection": "it looks at the frames that called it",
    "heap-inspection": "it looks through the interpreter's objects or state",
    "interpreter-memory": "it reaches into the interpreter's own memory",
    "command-line": "it reads the command line",
    "harness-environment": "it reads or sets a variable that only the harness has",
    "harness-import": "it imports what measures it",
    "module-table": "it looks through the table of loaded modules",
}


def _suspicion(check: str, site: Site) -> Suspicion:
    return Suspicion(check, _MESSAGES[check], site, _ADVICE)


def _read(read: Read) -> str:
    name = read.name
    if name.startswith("frame."):
        return "stack-inspection"
    if name in _HEAP:
        return "heap-inspection"
    if name in _INTERPRETER or name.rpartition(".")[0] in _INTERPRETER:
        return "interpreter-memory"
    if name in ("sys.argv", "sys.orig_argv"):
        return "command-line"
    if name.startswith("import "):
        return _import(name.removeprefix("import "))
    if name.startswith("pytest.") and name.split(".")[1] not in _MARKING:
        return "harness-import"
    if name == "iterate sys.modules" or name == "sys.modules.__main__":
        return "module-table"
    if name.startswith("os.environ.") and _harness_variable(name):
        return "harness-environment"
    if name.startswith("sys.modules.") and _harness_module(name.removeprefix("sys.modules.")):
        return "module-table"
    return ""


def _import(module: str) -> str:
    if module.partition(".")[0] in _HARNESS:
        return "harness-import"
    return "harness-import" if module.rpartition(".")[2] == "conftest" else ""


def _call(call: Call) -> str:
    name = call.name
    if name in _STACK:
        return "stack-inspection"
    given = (*call.arguments, *call.keywords.values())
    if name.startswith(_ENVIRONMENT) and any(_names_harness(v) for v in given):
        return "harness-environment"
    if name.startswith("sys.modules."):
        if name.rpartition(".")[2] in ("values", "items", "keys", "copy"):
            return "module-table"
        if any(_names_harness(value) for value in given):
            return "module-table"
    if name in _WALKS and any("sys.modules" in value.externals for value in given):
        return "module-table"
    if name.endswith(".from_address") and any(value.marked("id") for value in given):
        return "interpreter-memory"
    return ""


def _of_environment(value: Value) -> bool:
    return any(name.startswith(_ENVIRONMENT) for name in value.externals)


def _names_harness(value: Value) -> bool:
    return any(_harness_variable(text) for text in value.texts)


def _harness_variable(text: str) -> bool:
    return any(word in text.upper() for word in _VARIABLES)


def _harness_module(name: str) -> bool:
    top = name.partition(".")[0]
    return top in _HARNESS or top in ("pytest", "conftest")
