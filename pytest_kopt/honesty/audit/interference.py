"""Writing to what is not the kernel's: clocks, comparisons, generators, files, other threads."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import PurePath

from pytest_kopt.honesty.audit import vocabulary as known
from pytest_kopt.honesty.audit.library import ASKED
from pytest_kopt.honesty.audit.suspicion import Evidence, Suspicion
from pytest_kopt.honesty.audit.trace import Call, Patch
from pytest_kopt.honesty.audit.values import NOTHING, Object, Tag, Value
from pytest_kopt.honesty.audit.vocabulary import names

#: Modules that a measurement leans on; a kernel has no reason to write to their names.
_FOREIGN = names(
    "time torch numpy builtins sys os gc io csv json math random statistics operator functools"
    " itertools inspect traceback threading importlib subprocess types atexit signal contextlib"
    " pathlib pickle copy weakref collections pytest _pytest pytest_kopt pluggy xdist triton"
    " datetime timeit hashlib secrets"
)
#: Names under these are there to be set.
_SETTINGS = names("config knobs backends flags options")
_HARMLESS = names("sys.path sys.dont_write_bytecode sys.ps1 torch.classes")
#: What is written to say where a name is documented.
_LABELS = names("__module__ __name__ __qualname__ __doc__ __signature__")
_PRECISION = names(
    "allow_tf32 allow_fp16_reduced_precision_reduction allow_bf16_reduced_precision_reduction"
    " allow_fp16_accumulation fp32_precision"
)
_RUNTIME = names(
    "torch.set_num_threads torch.set_num_interop_threads torch.set_flush_denormal gc.disable"
    " gc.freeze gc.set_threshold gc.set_debug sys.setswitchinterval os.sched_setaffinity os.nice"
    " os.setpriority numba.set_num_threads mkl.set_num_threads os.sched_setscheduler"
)
_DEFAULTS = frozenset({"torch.set_default_dtype", "torch.set_default_tensor_type"})
_HOOKS = names(
    "sys.settrace sys.setprofile threading.settrace threading.setprofile sys.addaudithook"
    " threading.settrace_all_threads threading.setprofile_all_threads atexit._clear"
    " atexit.unregister atexit._run_exitfuncs sys.monitoring.set_events"
    " sys.monitoring.register_callback sys.monitoring.use_tool_id"
)
_IMPORT_HOOKS = tuple(f"sys.{n}." for n in ("meta_path", "path_hooks", "path_importer_cache"))
_EXITS = names("os._exit os.abort os.kill os.killpg signal.raise_signal")
_RAW_OUTPUT = names("os.write os.dup2 os.pwrite os.writev")
_DISPATCHER = names("torch.library.Library().impl torch.library.impl torch.library.register_kernel")
_STREAM_ATTRIBUTES = names("cudaStreamSetAttribute cuStreamSetAttribute")
_LIMITS = names("cudaDeviceSetLimit cuCtxSetLimit")
_RESET_L2 = names("cudaCtxResetPersistingL2Cache cuCtxResetPersistingL2Cache")
#: cudaLimitPersistingL2CacheSize and cudaStreamAttributeAccessPolicyWindow of the CUDA runtime.
_PERSISTING, _WINDOW = 6, 1
_WRITERS = names("write_text write_bytes unlink rename replace touch symlink_to hardlink_to")
_FILE_CALLS = tuple(
    f"{m}.{n}"
    for m, names in {
        "os": "remove rename replace unlink symlink link truncate",
        "shutil": "copy copy2 copyfile move rmtree copytree",
    }.items()
    for n in names.split()
)
_HARNESS_FILES = names(
    "conftest.py pytest.ini .pytest.ini tox.ini setup.cfg pyproject.toml ledger.jsonl verdict.json"
    " manifest.yaml benchmark.csv pairs.csv quick_test_bench.py"
)


def suspicions(evidence: Evidence) -> Iterator[Suspicion]:
    """Yield writes to foreign modules, process state, harness files, and ways around torch."""
    for patch in evidence.trace.patches:
        if evidence.runs(patch.site):
            yield from _patch(evidence, patch)
    for call in evidence.trace.calls:
        restored = call.name == "gc.disable" and evidence.calls(call.site, "gc.enable")
        if not restored and evidence.runs(call.site):
            yield from _call(call)
    yield from _defaults(evidence)
    yield from _classes(evidence)


# -- writes


def _patch(evidence: Evidence, patch: Patch) -> Iterator[Suspicion]:
    site = patch.site
    for name in sorted(patch.base.externals):
        steering = any(t.upper().startswith(("PYTEST", "KOPT")) for t in patch.attributes)
        if steering and name.startswith("os.environ"):
            yield Suspicion("harness-environment", "it sets what steers the harness", site)
            return
        targets = {f"{name}.{attribute}" for attribute in patch.attributes} or {f"{name}.?"}
        if targets & _HARMLESS or patch.attributes & _LABELS or not _foreign(name):
            continue
        if _is_shim(patch, name):
            continue
        if any(part in _SETTINGS or part.endswith("_config") for part in name.split(".")):
            if patch.attributes & _PRECISION:
                yield _precision(Suspicion("", "", site))
            continue
        yield Suspicion(
            "foreign-patch",
            f"it replaces {sorted(targets)[0].removesuffix('.?')}, which is not the kernel's",
            site,
            "call what you need under a name of your own",
        )
        return
    functions = any(o.kind in ("function", "bound", "partial") for o in patch.base.objects)
    if "__code__" in patch.attributes and functions:
        yield Suspicion(
            "self-rewriting", "a function's code is exchanged while it runs", site, "write it once"
        )
    if _is_tensor(evidence, patch.base) and _hooks(patch):
        yield Suspicion(
            "tensor-method-override",
            "a tensor is given methods of the kernel's own",
            site,
            "return plain tensors whose values are there",
        )


def _is_shim(patch: Patch, name: str) -> bool:
    """Say whether a name that a version of a package lacks is given to what has it elsewhere."""
    package = name.partition(".")[0]
    own = bool(patch.value.externals) and not patch.value.objects
    same = all(other.partition(".")[0] == package for other in patch.value.externals)
    asked = (Tag.MARK, ASKED) in patch.site.controls
    itself = {f"{name}.{attribute}" for attribute in patch.attributes} & patch.value.externals
    return own and same and (asked or bool(itself))


def _foreign(name: str) -> bool:
    if "()" in name or name.startswith(("os.environ", "sys.modules")):
        # Results of calls are the kernel's own objects; the tables have rules of their own.
        return name.startswith("sys.modules.")
    package, _, rest = name.partition(".")
    if any(part[:1].isupper() for part in rest.split(".")[:-1]):
        # Beyond a class stand instances: no name that anybody else looks up.
        return False
    if package == "triton":
        return name.startswith(("triton.testing", "triton.runtime"))
    return package in _FOREIGN


def _is_tensor(evidence: Evidence, value: Value) -> bool:
    local = any(o.kind == "tensor" for o in value.objects)
    return local or bool(evidence.tensors(value.about(Tag.RAW, Tag.DATA)))


def _hooks(patch: Patch) -> bool:
    methods = known.VIEWS | known.COPIES | known.CONTENT_METHODS | known.META_METHODS
    callables = any(o.kind in ("function", "bound", "partial") for o in patch.value.objects)
    return callables and (not patch.attributes or bool(patch.attributes & methods))


def _precision(suspicion: Suspicion) -> Suspicion:
    return Suspicion(
        "precision-flag",
        "a flag of the whole process is turned, for whatever is measured beside it too",
        suspicion.site,
        "ask for the precision where the product is made",
        rejects=False,
    )


# -- calls


def _call(call: Call) -> Iterator[Suspicion]:
    name, site = call.name, call.site
    last = name.rpartition(".")[2]
    if name in _RUNTIME:
        yield Suspicion(
            "runtime-change",
            "it changes the process that it is measured in",
            site,
            "leave threads, collector and floating-point modes as they are",
        )
    elif name in _HOOKS or name.startswith(_IMPORT_HOOKS):
        yield Suspicion(
            "interpreter-hook", "it hooks into the interpreter", site, "a kernel needs no hook"
        )
    elif name in _EXITS:
        yield Suspicion("process-exit", "it ends or signals a process", site, "raise instead")
    elif name in _RAW_OUTPUT:
        yield Suspicion(
            "raw-output", "it writes to file descriptors past Python's streams", site, "use print"
        )
    elif name == "torch.set_float32_matmul_precision" and _texts(call) & {"high", "medium"}:
        yield _precision(Suspicion("", "", site))
    elif name in _DISPATCHER and any(
        text == "aten" or text.startswith("aten::") for text in _texts(call)
    ):
        yield Suspicion(
            "dispatcher-override",
            "it registers implementations of torch's own operators",
            site,
            "register operators in a namespace of your own",
        )
    elif _persisting(call, last):
        yield Suspicion(
            "persisting-l2",
            "it reserves a part of the L2 cache across calls",
            site,
            "a real step runs other kernels in between; leave the cache policy alone",
        )
    elif _writes(call, last) and any(_harness_file(text) for text in _texts(call)):
        yield Suspicion(
            "harness-file-write",
            "it writes to a file of the harness",
            site,
            "write to a temporary directory, or not at all",
        )
    elif last == "__enter__" and name.startswith("torch.") and "Mode" in name:
        yield _mode(call)


def _texts(call: Call) -> frozenset[str]:
    given = (*call.arguments, *call.keywords.values())
    return frozenset().union(call.base.texts, *(value.texts for value in given))


def _defaults(evidence: Evidence) -> Iterator[Suspicion]:
    """Yield default dtypes set for the whole process, and not set back where they were set."""
    places: dict[tuple[str, str], dict[ast.AST, Call]] = defaultdict(dict)
    for call in evidence.trace.calls:
        if call.name in _DEFAULTS and evidence.runs(call.site):
            places[call.site.path, call.site.function][call.site.node] = call
    for calls in places.values():
        if len(calls) == 1:
            (call,) = calls.values()
            yield Suspicion(
                "default-dtype",
                "the default dtype is changed, for inputs and references too",
                call.site,
                "give dtypes where tensors are made",
            )


def _mode(call: Call) -> Suspicion:
    return Suspicion(
        "tensor-interception", "it intercepts torch's functions for the process", call.site
    )


def _persisting(call: Call, last: str) -> bool:
    node = call.site.node
    constants = [
        argument.value
        for argument in (node.args if isinstance(node, ast.Call) else [])
        if isinstance(argument, ast.Constant)
    ]
    named = "".join(n for value in call.arguments for n in value.externals)
    if last in _LIMITS:
        return constants[:1] == [_PERSISTING] or "Persisting" in named
    if last in _STREAM_ATTRIBUTES:
        return _WINDOW in constants or "AccessPolicyWindow" in named
    return last in _RESET_L2


def _writes(call: Call, last: str) -> bool:
    if call.name in _FILE_CALLS:
        return True
    if call.name == "builtins.open" or (last == "open" and call.base is not NOTHING):
        at = 1 if call.name == "builtins.open" else 0
        mode = call.keywords.get("mode", NOTHING)
        if len(call.arguments) > at:
            mode = call.arguments[at]
        return any(set(text) & set("wax+") for text in mode.texts if len(text) <= 4)
    return last in _WRITERS and call.name.startswith("pathlib.")


def _harness_file(text: str) -> bool:
    name = PurePath(text).name
    test = name.startswith("test_") or name.endswith("_test.py")
    return name in _HARNESS_FILES or (test and name.endswith(".py"))


# -- classes


def _classes(evidence: Evidence) -> Iterator[Suspicion]:
    for definition in evidence.trace.classes:
        modes = {b.rpartition(".")[2] for b in definition.bases}
        if modes & {"TorchFunctionMode", "TorchDispatchMode"}:
            if not any(_does_something(definition.object, n) for n in _INTERCEPTORS):
                continue
            yield Suspicion(
                "tensor-interception",
                "a mode that intercepts torch's functions",
                definition.site,
                "compute in the call, on the tensors it is given",
            )
    for returned in evidence.trace.returns:
        if returned.site.root.called:
            continue
        for obj in returned.value.objects:
            held = [fact for value in obj.fields.values() for fact in _inside(value)]
            inputs = evidence.tensors(about for tag, about in held if tag is Tag.RAW)
            if obj.kind == "instance" and inputs and _is_subclass(obj.classes):
                yield Suspicion(
                    "lazy-tensor",
                    "what is returned holds the inputs: the work is put off",
                    returned.site,
                    "return plain tensors whose values are there",
                )


_INTERCEPTORS = "__torch_function__", "__torch_dispatch__"


def _does_something(cls: Object, name: str) -> bool:
    """Say whether a hook does more than call the function that it was asked for."""
    for method in cls.fields.get(name, NOTHING).objects:
        definition = method.definition
        if isinstance(definition, ast.FunctionDef):
            body = definition.body[1:] if ast.get_docstring(definition) else definition.body
            called = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
            if isinstance(called, ast.Call) and isinstance(called.func, ast.Name):
                names = {argument.arg for argument in definition.args.args}
                return called.func.id not in names
            return True
    return False


def _inside(value: Value) -> frozenset[tuple[Tag, object]]:
    items = value.items or ()
    return value.facts | frozenset(f for item in items for f in _inside(item))


def _is_subclass(classes: tuple[object, ...]) -> bool:
    flags = {flag for cls in classes for flag in getattr(cls, "flags", ())}
    return bool(flags & {"torch.Tensor", "torch.nn.Parameter", "torch._tensor.Tensor"})
