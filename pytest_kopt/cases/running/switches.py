"""State of the process that a case may change: torch's switches, and the environment.

kopt reports what calls changed, and resets it before the next case.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from typing import Any

from pytest_kopt.cases.order import Bench
from pytest_kopt.honesty.finding import Finding

#: What is read by one function of torch's and set by another.
_FUNCTIONS = {
    "get_default_dtype": "set_default_dtype",
    "get_float32_matmul_precision": "set_float32_matmul_precision",
    "get_num_threads": "set_num_threads",
    "is_grad_enabled": "set_grad_enabled",
    "is_anomaly_enabled": "set_anomaly_enabled",
    "backends.cuda.flash_sdp_enabled": "backends.cuda.enable_flash_sdp",
    "backends.cuda.mem_efficient_sdp_enabled": "backends.cuda.enable_mem_efficient_sdp",
    "backends.cuda.math_sdp_enabled": "backends.cuda.enable_math_sdp",
    "backends.cuda.cudnn_sdp_enabled": "backends.cuda.enable_cudnn_sdp",
    "backends.cuda.fp16_bf16_reduction_math_sdp_allowed": (
        "backends.cuda.allow_fp16_bf16_reduction_math_sdp"
    ),
    "backends.cuda.preferred_blas_library": "backends.cuda.preferred_blas_library",
    "backends.cuda.preferred_linalg_library": "backends.cuda.preferred_linalg_library",
    "backends.cuda.preferred_rocm_fa_library": "backends.cuda.preferred_rocm_fa_library",
    "backends.mha.get_fastpath_enabled": "backends.mha.set_fastpath_enabled",
}
#: What is an attribute. Setting one of torch's older names changes the newer `fp32_precision` too,
#: and setting that of all changes those of each: the special ones come last.
_ATTRIBUTES = (
    "utils.deterministic.fill_uninitialized_memory",
    *(f"backends.{name}.enabled" for name in ("cudnn", "mkldnn", "opt_einsum")),
    *(f"backends.cudnn.{name}" for name in ("benchmark", "benchmark_limit", "deterministic")),
    *(f"backends.{name}.deterministic" for name in ("mkldnn", "miopen")),
    "backends.miopen.immediate",
    "backends.opt_einsum.strategy",
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "backends.cuda.matmul.allow_fp16_accumulation",
    "backends.cuda.matmul.allow_tf32",
    "backends.cudnn.allow_tf32",
    "backends.fp32_precision",
    *(f"backends.{name}.fp32_precision" for name in ("cudnn", "mkldnn")),
    *(f"backends.cudnn.{name}.fp32_precision" for name in ("conv", "rnn")),
    *(f"backends.mkldnn.{name}.fp32_precision" for name in ("matmul", "conv", "rnn")),
    "backends.cuda.matmul.fp32_precision",
)
_UNREAD = object()
#: Dispatch keys whose kernels compute.
_REAL = ("CPU", "CUDA", "AutogradCPU", "AutogradCUDA", "CompositeExplicitAutograd", "HIP")


def compile_here() -> None:
    """Have torch compile in this process: a pool of compilers would start during timed cases."""
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    # Whoever imported it has the old setting.
    config: Any = sys.modules.get("torch._inductor.config")
    if config is not None:
        config.compile_threads = 1


@contextmanager
def switches_kept() -> Iterator[None]:
    """Put switches and environment, but for pytest's, back as they were; imports no torch."""
    before, environment = read_switches(), dict(os.environ)
    try:
        yield
    finally:
        for name in environment.keys() | os.environ.keys():
            if environment.get(name) != os.environ.get(name) and not name.startswith("PYTEST_"):
                os.environ.pop(name, None)
                os.environ.update({name: environment[name]} if name in environment else {})
        for name, value in before.items():
            # Read anew each time: setting one may have changed another.
            if read_switches((name,)).get(name, _UNREAD) != value:
                write_switch(name, value)


def left_switches(switches: Mapping[str, object]) -> Iterator[Finding]:
    """Name torch's switches, and its number of threads, that calls left otherwise than before."""
    changed = [
        f"{name} was {before}, is {after}"
        for name, after in read_switches().items()
        if (before := switches.get(name, after)) != after
    ]
    if changed:
        yield Finding(
            "switch-left",
            f"calls change process-wide switches of torch: {'; '.join(changed)}",
            advice=(
                "set the switch for the call alone, as `with torch.no_grad():` does, or "
                "once where the kernel's file is imported"
            ),
            rejects=False,
        )


def replaced_operators() -> frozenset[str]:
    """Return the implementations that Python code registered in place of torch's operators' own.

    They run in whatever else runs in this process: in the current best, and where content is
    written. Empty without torch.
    """
    torch = sys.modules.get("torch")
    replaced = set()
    for key in getattr(getattr(torch, "library", None), "_impls", ()):
        library, _, rest = key.partition("/")
        operator, _, place = rest.rpartition("/")
        if library == "aten" and place in _REAL:
            dump = torch._C._dispatch_dump(f"aten::{operator}")  # type: ignore[union-attr]
            replaced |= {key} if f"\n{place} (inactive)" in dump else set()
    return frozenset(replaced - _of_torch())


def _of_torch() -> set[str]:
    """Return the implementations in Python that torch registers itself, some on first use."""
    graphs = getattr(sys.modules.get("torch._native.registry"), "_graphs", {})
    return {
        f"aten/{operator}/{place}"
        for (operator, place), nodes in graphs.items()
        if all(node.impl_fn.__module__.startswith("torch._native.") for node in nodes)
    }


def new_operators(bench: Bench) -> list[Finding]:
    """Return a finding if a kernel replaced operators of torch."""
    added = sorted(replaced_operators() - bench.operators)
    message = f"the kernel registered {', '.join(added)} in place of torch's own"
    advice = "register operators of your own instead of replacing torch's"
    return [Finding("process-state", message, advice=advice)] if added else []


def read_switches(names: tuple[str, ...] = ()) -> Mapping[str, object]:
    """Return the values of some of torch's switches, of all by default; none without torch."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    values: dict[str, object] = {}
    for name in names or (*_SPECIAL, *_FUNCTIONS, *_ATTRIBUTES):
        # RuntimeError: torch refuses to tell where its older and newer names were mixed.
        with suppress(AttributeError, RuntimeError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if name in _SPECIAL:
                values[name] = _SPECIAL[name][0](torch)
            else:
                value = attrgetter(name)(torch)
                values[name] = value() if name in _FUNCTIONS else value
    return values


def write_switch(name: str, value: object) -> None:
    """Set one of torch's switches, by its name in `read_switches`."""
    torch = sys.modules["torch"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if name in _SPECIAL:
            _SPECIAL[name][1](torch, value)
        elif name in _FUNCTIONS:
            attrgetter(_FUNCTIONS[name])(torch)(value)
        else:
            holder, _, attribute = name.rpartition(".")
            setattr(attrgetter(holder)(torch), attribute, value)


def _determinism(torch: Any) -> tuple[bool, bool]:
    enabled = torch.are_deterministic_algorithms_enabled()
    return enabled, torch.is_deterministic_algorithms_warn_only_enabled()


def _default_device(torch: Any) -> object:
    """Return the device that was set, None where none was, which torch's own getter hides."""
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return context and context.device


def _set_autocast(torch: Any, value: Any) -> None:
    for kind, enabled in value.items():
        torch.set_autocast_enabled(kind, enabled)


#: What takes more to read or to set than a name.
_SPECIAL: Mapping[str, tuple[Callable[[Any], object], Callable[[Any, Any], None]]] = {
    "deterministic algorithms": (
        _determinism,
        # torch.use_deterministic_algorithms imports the compiler first, for seconds.
        lambda torch, value: torch._C._set_deterministic_algorithms(value[0], warn_only=value[1]),
    ),
    "autocast": (
        lambda torch: {kind: torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")},
        _set_autocast,
    ),
    "default device": (_default_device, lambda torch, value: torch.set_default_device(value)),
}
