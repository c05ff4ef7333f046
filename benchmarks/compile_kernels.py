"""Compile every version of the campaigns' kernels for sm_90, on any machine; no GPU is needed.

python benchmarks/compile_kernels.py [NAME...]

Walks the steps as if each were kept, calls each version at its real shapes without memory behind
them, and has Triton and its assembler translate what would be launched. Prints registers, stack
(spills) and shared memory of each kernel; ends with status 1 where something does not compile.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
import triton
from campaign_steps import edited, load, names
from tabulate import tabulate
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

from pytest_kopt.sameness.launch_recording import Launch, Recording
from pytest_kopt.sameness.objects import digest, figures

ARCH, TARGET = "sm_90", GPUTarget("cuda", 90, 32)
_SHOWN = ("registers", "stack", "shared memory", "threads", "tensor-core")


class Nothing:
    """Stands in for a driver: there is a card, and nothing runs on it."""

    def get_current_target(self) -> GPUTarget:
        return TARGET

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


class Shape(torch.Tensor):
    """A tensor without memory that has an address, so that Triton takes it for aligned."""

    @staticmethod
    def __new__(cls, like: torch.Tensor) -> Shape:
        made: Shape = torch.Tensor._make_subclass(cls, like.detach())
        return made

    def data_ptr(self) -> int:
        return 4096


def versions(name: str) -> Iterator[tuple[str, str]]:
    """Yield the versions of a campaign's kernel, every step kept."""
    plan = load(name)
    source = plan.source()
    yield "baseline", source
    for step in plan.steps:
        for place, edits in enumerate(step.attempts):
            source = edited(source, edits)
            yield step.name + (f", repair {place}" if place else ""), source


def recorded(name: str, source: str, dims: Mapping[str, Any]) -> Recording:
    """Return what a version of a campaign's kernel launches for a case through Triton."""
    call = CALLS[name]
    shape = {key: dims[key] for key in inspect.signature(call).parameters if key in dims}
    launches: list[Launch] = []
    objects: dict[str, bytes] = {}

    def compile_only(
        self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kw: Any
    ) -> None:
        given = [Shape(a) if isinstance(a, torch.Tensor) else a for a in args]
        kernel = real(self, *given, grid=(1,), warmup=True, **kw)
        named = dict(zip(self.arg_names, args, strict=False)) | kw
        size = grid(named) if callable(grid) else grid
        known, content = kernel.metadata, kernel.asm["cubin"]
        objects[digest(content)] = content
        launches.append(
            Launch(
                self.fn.__name__,
                tuple(size),
                (known.num_warps * TARGET.warp_size,),
                known.shared,
                digest(content),
                tuple(str(a) if isinstance(a, int | float) else "address" for a in args),
            )
        )

    triton.runtime.driver.set_active(Nothing())
    real = JITFunction.run
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "version.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location("version", path)
        assert spec and spec.loader
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        JITFunction.run = compile_only
        try:
            call(module, **shape)
        finally:
            JITFunction.run = real
    return Recording(tuple(launches), objects)


def rmsnorm(module: Any, rows: int, columns: int) -> None:
    x = empty(rows, columns).requires_grad_()
    w = empty(columns).requires_grad_()
    module.rmsnorm(x, w).backward(empty(rows, columns))


def gemm_fp8_blockwise(module: Any, M: int, N: int, K: int) -> None:
    x, w = empty(M, K).requires_grad_(), empty(N, K).requires_grad_()
    module.gemm_fp8(x, w).backward(empty(M, N))


def grouped_gemm(module: Any, G: int, M: int, N: int, K: int) -> None:
    x, w = empty(M, K).requires_grad_(), empty(G, N, K).requires_grad_()
    sizes = empty(G, dtype=torch.int32)
    module.grouped_gemm(x, w, sizes).backward(empty(M, N))


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


CALLS: dict[str, Callable[..., None]] = {
    call.__name__: call for call in (rmsnorm, gemm_fp8_blockwise, grouped_gemm)
}
SHAPES: dict[str, list[dict[str, int]]] = {
    "rmsnorm": [{"rows": 16384, "columns": n} for n in (3584, 4096, 5120, 8192)],
    "gemm_fp8_blockwise": [
        {"M": 4096, "N": 4096, "K": 4096},
        {"M": 4096, "N": 28672, "K": 8192},
    ],
    "grouped_gemm": [{"G": 16, "M": m, "N": 1536, "K": 2048} for m in (16384, 512)],
}


def rows(name: str, version: str, source: str) -> Iterator[dict[str, Any]]:
    """Yield what each kernel of a version needs, once for all equal ones."""
    seen = set()
    for dims in SHAPES[name]:
        found = recorded(name, source, dims)
        for launch in found.launches:
            threads = prod(launch.block)
            needs = figures(found.objects[launch.code], threads, launch.shared, ARCH)
            needs["threads"] = threads
            row = tuple(int(needs.get(key, 0)) for key in _SHOWN)
            if (launch.name, row) not in seen:
                seen.add((launch.name, row))
                yield {"version": version, "kernel": launch.name} | dict(
                    zip(_SHOWN, row, strict=True)
                )


def main() -> None:
    failed = 0
    for name in sys.argv[1:] or names():
        found: list[dict[str, Any]] = []
        for version, source in versions(name):
            try:
                found += rows(name, version, source)
            except Exception as error:
                failed += 1
                found.append({"version": version, "kernel": f"{type(error).__name__}: {error}"})
        print(f"{name}, Triton {triton.__version__}, sm_90\n{tabulate(found, headers='keys')}\n")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
