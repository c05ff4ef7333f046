"""Compile every version of the campaigns' kernels for sm_90, on any machine; no GPU is needed.

python benchmarks/compile_kernels.py [NAME...]

Walks the steps as if each were kept, calls each version at its real shapes without memory behind
them, and has Triton and its assembler translate what would be launched. Prints registers, stack
(spills) and shared memory of each kernel; ends with status 1 where something does not compile.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import triton
from campaign_steps import edited, load, names
from tabulate import tabulate
from triton.backends.compiler import GPUTarget
from triton.runtime.jit import JITFunction

TARGET = GPUTarget("cuda", 90, 32)
_PRODUCTS = re.compile(r"\b([HQ]G?MMA)\b")
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+)")


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


def compiled(source: str, call: Callable[[Any], None]) -> list[dict[str, Any]]:
    """Return what each kernel that `call` launches needs, once for all equal ones."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}

    def compile_only(
        self: JITFunction[Any], *args: Any, grid: Any, warmup: bool, **kw: Any
    ) -> None:
        given = [Shape(a) if isinstance(a, torch.Tensor) else a for a in args]
        kernel = real(self, *given, grid=(1,), warmup=True, **kw)
        if kernel is None:
            return
        row = {"kernel": self.fn.__name__, **usage(kernel.asm["cubin"])}
        row |= {"shared": kernel.metadata.shared, "warps": kernel.metadata.num_warps}
        found[tuple(row.values())] = row

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
            call(module)
        finally:
            JITFunction.run = real
    return list(found.values())


def usage(cubin: bytes) -> dict[str, Any]:
    """Return what an assembled kernel needs: registers a thread, bytes of stack, tensor cores."""
    tools = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.check_output(
            [tools / "cuobjdump", "--dump-resource-usage", file.name], text=True
        )
        code = subprocess.check_output([tools / "nvdisasm", file.name], text=True)
    numbers = _USAGE.search(text)
    assert numbers, text
    products = " ".join(sorted(set(_PRODUCTS.findall(code))))
    return {"registers": int(numbers[1]), "stack": int(numbers[2]), "products": products}


def rmsnorm(module: Any) -> None:
    for columns in (3584, 4096, 5120, 8192):
        x = empty(16384, columns).requires_grad_()
        w = empty(columns).requires_grad_()
        module.rmsnorm(x, w).backward(empty(16384, columns))


def gemm_fp8_blockwise(module: Any) -> None:
    for m, n, k in ((4096, 4096, 4096), (4096, 28672, 8192)):
        x, w = empty(m, k).requires_grad_(), empty(n, k).requires_grad_()
        module.gemm_fp8(x, w).backward(empty(m, n))


def grouped_gemm(module: Any) -> None:
    for rows in (16384, 512):
        x, w = empty(rows, 2048).requires_grad_(), empty(16, 1536, 2048).requires_grad_()
        sizes = empty(16, dtype=torch.int32)
        module.grouped_gemm(x, w, sizes).backward(empty(rows, 1536))


def empty(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


CALLS = {call.__name__: call for call in (rmsnorm, gemm_fp8_blockwise, grouped_gemm)}


def main() -> None:
    triton.runtime.driver.set_active(Nothing())
    failed = 0
    for name in sys.argv[1:] or names():
        rows: list[dict[str, Any]] = []
        for version, source in versions(name):
            try:
                rows += [{"version": version, **row} for row in compiled(source, CALLS[name])]
            except Exception as error:
                failed += 1
                rows.append({"version": version, "kernel": f"{type(error).__name__}: {error}"})
        print(f"{name}, Triton {triton.__version__}, sm_90\n{tabulate(rows, headers='keys')}\n")
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
