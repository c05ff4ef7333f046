"""The audit: what in a candidate's sources an author should explain, noted by a flat look at them.

It follows no values and proves nothing, so it refuses nothing: what code *does* is for the checks
that run it to find. Its notes stand in the verdict, and their buckets in the transfer check; a
case whose file has one of W2 or W3 runs the whole training loop.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pytest_kopt.honesty.finding import Finding

_LONGEST = 90


class _Rule(NamedTuple):
    check: str
    message: str
    names: tuple[str, ...]


def _rule(check: str, message: str, names: str) -> _Rule:
    return _Rule(check, message, tuple(names.split()))


#: By what is called, read or imported; a name that ends in a dot stands for all below it.
_RULES = (
    _rule(
        "stack-inspection",
        "it looks at the frames that called it",
        "sys._getframe sys._current_frames inspect.stack inspect.currentframe inspect.trace"
        " inspect.getouterframes traceback.extract_stack traceback.walk_stack",
    ),
    _rule(
        "heap-inspection",
        "it looks through the interpreter's objects or state",
        "gc.get_objects gc.get_referrers gc.get_referents gc.isenabled sys.getprofile sys.gettrace",
    ),
    _rule(
        "interpreter-memory",
        "it reaches into the interpreter's own memory",
        "ctypes.pythonapi ctypes.py_object ctypes.PYFUNCTYPE ctypes.PyDLL",
    ),
    _rule("module-table", "it looks through the table of loaded modules", "sys.modules"),
    _rule("command-line", "it reads the command line", "sys.argv sys.orig_argv"),
    _rule(
        "harness-import",
        "it imports what measures it",
        "pytest pytest. _pytest _pytest. pytest_kopt pytest_kopt. pluggy xdist conftest",
    ),
    _rule(
        "interpreter-hook",
        "it hooks into the interpreter",
        "sys.settrace sys.setprofile threading.settrace threading.setprofile sys.addaudithook"
        " sys.meta_path sys.path_hooks sys.monitoring.",
    ),
    _rule(
        "runtime-change",
        "it changes the process that it is measured in",
        "torch.set_num_threads torch.set_num_interop_threads torch.set_flush_denormal gc.disable"
        " gc.freeze gc.set_threshold sys.setswitchinterval os.sched_setaffinity os.nice"
        " os.sched_setscheduler",
    ),
    _rule(
        "default-dtype",
        "the default dtype is changed, for inputs and references too",
        "torch.set_default_dtype torch.set_default_tensor_type",
    ),
    _rule("process-exit", "it ends or signals a process", "os._exit os.abort os.kill os.killpg"),
    _rule("raw-output", "it writes past Python's streams", "os.write os.dup2 os.pwrite os.writev"),
    _rule(
        "seed-rederivation",
        "it asks how the generators stand that inputs are drawn from",
        "torch.initial_seed torch.get_rng_state random.getstate numpy.random.get_state"
        " torch.cuda.get_rng_state torch.cuda.initial_seed",
    ),
    _rule(
        "global-seed",
        "the generator that everything else draws from is set",
        "torch.manual_seed torch.set_rng_state torch.cuda.manual_seed random.seed"
        " numpy.random.seed torch.cuda.set_rng_state",
    ),
    _rule(
        "background-work",
        "work is started that may go on after the call",
        "threading.Thread threading.Timer multiprocessing.Process os.fork"
        " concurrent.futures.ThreadPoolExecutor concurrent.futures.ProcessPoolExecutor",
    ),
    _rule("stream-switch", "it leaves another stream current", "torch.cuda.set_stream"),
    _rule(
        "memoised-tensors",
        "a memoising decorator may keep what it is given",
        "cachetools. joblib.Memory weakref.WeakKeyDictionary",
    ),
)
_MEMOISERS = ("functools.lru_cache", "functools.cache")
_PRECISION = (
    *("allow_tf32", "allow_fp16_reduced_precision_reduction", "allow_fp16_accumulation"),
    *("allow_bf16_reduced_precision_reduction", "fp32_precision"),
)
_HARNESS_FILES = (
    *("conftest.py", "pytest.ini", "tox.ini", "setup.cfg", "pyproject.toml", "ledger.jsonl"),
    *("verdict.json", "manifest.yaml", "benchmark.csv", "pairs.csv"),
)
_HARNESS_VARIABLES = ("PYTEST", "KOPT_", "XDIST")
#: What tells a tensor from others without a look at all of its content, and what reads some of it.
_IDENTITY = ("data_ptr", "untyped_storage", "_cdata", "__array_interface__")
_CONTENT = ("item", "tolist", "numpy", "tobytes")
_LOOKUPS = ("get", "setdefault", "pop", "move_to_end")
_TENSOR_METHODS = ("shape", "stride", "data_ptr", "numel", "contiguous")
_FOREIGN = ("time", "torch", "numpy", "builtins", "sys", "gc", "statistics", "random", "triton")
_SETTINGS = ("config", "backends", "flags", "environ", "modules", "path", "knobs", "options")
_GROUPS = (("m", "token", "tokens", "row", "rows"), ("group", "groups", "expert", "experts"))


@dataclass(frozen=True, slots=True)
class _Note:
    check: str
    message: str
    node: ast.AST
    bucket: str = ""

    @property
    def pattern(self) -> tuple[str, str]:
        """The rule and the code, wherever it stands."""
        return self.check, ast.dump(self.node)


def audit(candidate: Mapping[str, bytes], incumbent: Mapping[str, bytes]) -> list[Finding]:
    """Return notes about a candidate's sources, by path; files that are no Python have none.

    What the incumbent does too is said with it, and has no bucket: it is no gain of this round's.
    """
    known = Counter(note.pattern for _, note in _notes(incumbent))
    found = []
    for path, note in _notes(candidate):
        code = ast.unparse(note.node).partition("\n")[0]
        code = code if len(code) <= _LONGEST else f"{code[: _LONGEST - 1]}…"
        known[note.pattern] -= 1
        old = known[note.pattern] >= 0
        found.append(
            Finding(
                note.check,
                f"{'the incumbent has it too: ' if old else ''}{note.message}: `{code}`",
                where=f"{path}:{getattr(note.node, 'lineno', 1)}",
                bucket="" if old else note.bucket,
                rejects=False,
            )
        )
    return found


def suspects_a_cache(source: bytes) -> bool:
    """Say whether a file has what looks like a cache of activations or results (W2, W3)."""
    return any(found.bucket in ("W2", "W3") for found in audit({"": source}, {}))


def _notes(sources: Mapping[str, bytes]) -> Iterator[tuple[str, _Note]]:
    for path, content in sources.items():
        if not path.endswith(".py") and path:
            continue
        try:
            tree = ast.parse(content)
        except (SyntaxError, ValueError):
            continue
        visitor = _Visitor()
        visitor.visit(tree)
        seen = set()
        for note in visitor.notes:
            place = note.check, getattr(note.node, "lineno", 0)
            if place not in seen:
                seen.add(place)
                yield path, note


class _Visitor(ast.NodeVisitor):
    """One pass over a file: names of imports are known, functions are looked at as a whole."""

    def __init__(self) -> None:
        self.notes: list[_Note] = []
        self._names: dict[str, str] = {}

    def _note(self, check: str, message: str, node: ast.AST, bucket: str = "") -> None:
        self.notes.append(_Note(check, message, node, bucket))

    # -- what is imported, named and called

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._names[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )
            self._named(alias.name, node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            name = f"{node.module or ''}.{alias.name}"
            self._names[alias.asname or alias.name] = name
            self._named(name, node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self._named(self._dotted(node), node)
        if isinstance(node.ctx, ast.Store):
            self._written(node)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        name = self._names.get(node.id, "")
        if isinstance(node.ctx, ast.Load) and "." in name:
            self._named(name, node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._dotted(node.func)
        texts = [_text(part) for part in ast.walk(node)]
        if name.startswith("os.") and any(_is_variable(text) for text in texts):
            self._environment(node)
        elif name == "setattr" and node.args and self._is_foreign(self._dotted(node.args[0])):
            self._patched(node)
        elif name.endswith("Library") or name.startswith("torch.library."):
            if any(text.partition("::")[0] == "aten" for text in texts):
                self._note("dispatcher-override", "it registers torch's own operators anew", node)
        elif name.rpartition(".")[2] in ("cudaDeviceSetLimit", "cudaStreamSetAttribute"):
            self._note("persisting-l2", "it sets a limit or policy of the device", node)
        elif name == "torch.set_float32_matmul_precision":
            self._precision(node)
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if _text(node).rpartition("/")[2] in _HARNESS_FILES:
            self._note("harness-file-write", "it names a file of the harness", node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        key = node.slice
        named = isinstance(key, ast.Constant) and _is_variable(str(key.value))
        if named and self._dotted(node.value) == "os.environ":
            self._environment(node)
        self.generic_visit(node)

    def visit_Assert(self, node: ast.Assert) -> None:
        self._divisible(node.test, node)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        if any(isinstance(part, ast.Raise) for part in node.body):
            self._divisible(node.test, node.test)
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        bases = {self._dotted(base).rpartition(".")[2] for base in node.bases}
        if bases & {"TorchFunctionMode", "TorchDispatchMode"}:
            self._note("tensor-interception", "a mode that intercepts torch's functions", node)
        if "Tensor" in bases:
            self._note("lazy-tensor", "a tensor of the kernel's own kind", node)
        self.generic_visit(node)

    # -- functions as a whole

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._constants(node)
        self._caches(node)
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if self._dotted(called) in _MEMOISERS and self._takes_tensors(node):
                text = "results are kept for equal arguments, tensors among them"
                self._note("memoised-tensors", text, decorator, "W2")
        self.generic_visit(node)

    def _caches(self, node: ast.FunctionDef) -> None:
        """Note what is found again by what a tensor is or holds, where something is kept."""
        own = list(_own_nodes(node))
        if not any(map(_keeps, own)):
            return
        keys = [key for part in own for key in _keys(part)]
        names = {part.id for key in keys for part in ast.walk(key) if isinstance(part, ast.Name)}
        keys += [
            part.value
            for part in own
            if isinstance(part, ast.Assign)
            and names & {n.id for t in part.targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        ]
        inside = [sub for key in keys for sub in ast.walk(key)]
        read = {sub.attr for sub in inside if isinstance(sub, ast.Attribute)}
        called = {sub.func.id for sub in inside if _is_call(sub)}  # type: ignore[attr-defined]
        weak = any(self._dotted(part) == "weakref.ref" for part in own)
        if "_version" in read:
            text = "something is kept for as long as a tensor is not written to"
            self._note("weight-cache", text, keys[0], "W1")
        elif read & {*_IDENTITY} or "id" in called or weak:
            text = "something is kept by the identity of a tensor"
            self._note("identity-keyed-cache", text, keys[0] if keys else node, "W2")
        elif read & {*_CONTENT} or any(_is_call(sub) and _reads_element(sub) for sub in inside):
            text = "something is kept by a fingerprint of a tensor's content"
            self._note("content-keyed-cache", text, keys[0], "W3")

    def _constants(self, node: ast.FunctionDef) -> None:
        spec = node.args
        for argument in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs):
            note = argument.annotation
            if note is not None and "constexpr" in ast.unparse(note) and _per_group(argument.arg):
                text = "the number of rows in a group is a compile-time constant"
                self._note("fixed-group-size", text, argument)

    def _takes_tensors(self, node: ast.FunctionDef) -> bool:
        names = {argument.arg for argument in node.args.args}
        return any(
            isinstance(part, ast.Attribute)
            and part.attr in _TENSOR_METHODS
            and isinstance(part.value, ast.Name)
            and part.value.id in names
            for part in ast.walk(node)
        )

    # -- helpers

    def _named(self, name: str, node: ast.AST) -> None:
        for rule in _RULES:
            below = tuple(known for known in rule.names if known.endswith("."))
            if name in rule.names or (below and name.startswith(below)):
                bucket = "W2" if rule.check == "memoised-tensors" else ""
                self._note(rule.check, rule.message, node, bucket)

    def _written(self, node: ast.Attribute) -> None:
        if node.attr in _PRECISION:
            self._precision(node)
        elif node.attr == "__code__":
            self._note("self-rewriting", "a function's code is exchanged while it runs", node)
        elif self._is_foreign(self._dotted(node.value)):
            self._patched(node)

    def _patched(self, node: ast.AST) -> None:
        self._note("foreign-patch", "it replaces a name that is not the kernel's", node)

    def _precision(self, node: ast.AST) -> None:
        text = "a flag of the whole process is turned, for whatever is measured beside it too"
        self._note("precision-flag", text, node)

    def _environment(self, node: ast.AST) -> None:
        text = "it reads or sets a variable that only the harness has"
        self._note("harness-environment", text, node)

    def _divisible(self, test: ast.expr, node: ast.AST) -> None:
        if any(isinstance(part, ast.Mod) for part in ast.walk(test)):
            self._note("divisible-shapes", "it refuses sizes that do not fit its tiles", node)

    def _is_foreign(self, name: str) -> bool:
        parts = name.split(".")
        return parts[0] in _FOREIGN and not any(
            part in _SETTINGS or part.endswith("_config") for part in parts
        )

    def _dotted(self, node: ast.AST) -> str:
        """Return a name as it was imported, "" for what is none."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            base = self._dotted(node.value)
            return f"{base}.{node.attr}" if base else ""
        return ""


def _own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Yield the nodes of a function, without those of functions inside of it."""
    waiting: list[Any] = list(function.body)
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def _keys(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what something is looked up by, or compared with what was kept."""
    if isinstance(node, ast.Subscript):
        yield node.slice
    elif isinstance(node, ast.Compare):
        yield from (node.left, *node.comparators)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from node.args[:1] if node.func.attr in _LOOKUPS else []


def _keeps(node: ast.AST) -> bool:
    """Say whether a statement writes to something that outlives the call, as far as one sees."""
    if isinstance(node, ast.Global | ast.Nonlocal):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in ("setdefault", "append", "put", "update")
    return isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store)


def _is_call(node: ast.AST) -> bool:
    """Say whether a node calls something by a plain name."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name)


def _reads_element(call: ast.AST) -> bool:
    is_cast = call.func.id in ("float", "int")  # type: ignore[attr-defined]
    return is_cast and any(isinstance(part, ast.Subscript) for part in ast.walk(call))


def _text(node: ast.AST) -> str:
    """Return the text of a literal, "" of anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_variable(text: str) -> bool:
    return any(word in text.upper() for word in _HARNESS_VARIABLES)


def _per_group(name: str) -> bool:
    """Say whether a name says rows (or tokens, or M) per group (or expert)."""
    words = name.lower().split("_")
    words = words[1:] if words[0] in ("num", "n", "max") else words
    counted, groups = _GROUPS
    return len(words) == 3 and words[0] in counted and words[1] == "per" and words[2] in groups
