"""The launches of a call on a GPU, read in order through the driver.

A call is captured into a graph, and twice: bytes that another capture does not repeat are no choice
of the kernel's.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from pytest_kopt.sameness.launch_recording import Launch, Recording
from pytest_kopt.sameness.objects import digest

_KERNEL, _MEMCPY, _MEMSET, _EMPTY = 0, 1, 2, 5
#: Attributes of a function by their numbers in the driver's interface.
_ATTRIBUTES = {"stack": 3, "registers": 4}
_MEMORY_TYPE = 2
_WORD = 8


class Unreadable(Exception):
    """The driver does not show what a call launches."""


def architecture() -> str:
    """Return the current device's architecture as in the spec files, `sm_90` or `gfx942`."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    if torch.version.hip:
        return str(properties.gcnArchName).partition(":")[0]
    return f"sm_{properties.major}{properties.minor}"


def record(call: Callable[[], object]) -> Recording:
    """Return what `call`, which has run before, launches on the current device."""
    kernels = _triton_kernels(call)
    objects = {digest(content): content for kernel in kernels if (content := _object(kernel))}
    try:
        by_function = {kernel.function: kernel for kernel in kernels}
        first, again = (_launches(call, by_function) for _ in range(2))
        if len(first) != len(again):
            raise Unreadable("it launches something else each time")
        settled = tuple(one.settled(other) for one, other in zip(first, again, strict=True))
        return Recording(settled, objects)
    except Unreadable as error:
        return Recording(tuple(map(_of_triton, kernels)), objects, str(error))


def _launches(call: Callable[[], object], kernels: Mapping[int, Any]) -> list[Launch]:
    graph = _captured(call)
    driver = _Driver()
    return [driver.launch(node, kernels) for node in driver.nodes(graph.raw_cuda_graph())]


def _triton_kernels(call: Callable[[], object]) -> list[Any]:
    """Run a call and return the compiled kernels that it launches through Triton, in order."""
    kernels: list[Any] = []
    jit = sys.modules.get("triton.runtime.jit")
    if jit is None:
        return kernels

    def run(self: Any, *args: Any, **keywords: Any) -> Any:
        kernel = launch(self, *args, **keywords)
        if hasattr(kernel, "asm"):
            kernels.append(kernel)
        return kernel

    launch, jit.JITFunction.run = jit.JITFunction.run, run
    try:
        call()
    finally:
        jit.JITFunction.run = launch
    return kernels


def _of_triton(kernel: Any) -> Launch:
    """Return a launch as far as Triton knows it: what a GPU's driver does not show."""
    metadata = kernel.metadata
    content = _object(kernel)
    threads = metadata.num_warps * metadata.target.warp_size
    return Launch(
        metadata.name, (), (threads,), metadata.shared, digest(content) if content else ""
    )


def _object(kernel: Any) -> bytes | None:
    content = next((kernel.asm[k] for k in ("cubin", "hsaco") if k in kernel.asm), None)
    return content if isinstance(content, bytes) else None


def _captured(call: Callable[[], object]) -> Any:
    stream = torch.cuda.current_stream()
    try:
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            outputs = call()
    except Exception as error:
        torch.cuda.set_stream(stream)
        raise Unreadable(f"{type(error).__name__}: {error}".splitlines()[0]) from error
    del outputs
    return graph


def _mapped() -> list[tuple[int, int]]:
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    ranges = (line.split(maxsplit=1)[0].split("-") for line in lines)
    return [(int(start, 16), int(end, 16)) for start, end in ranges]


class _KernelParameters(ctypes.Structure):
    """CUDA_KERNEL_NODE_PARAMS_v2 of the driver's interface."""

    _fields_ = (
        ("function", ctypes.c_void_p),
        *((f"{what}_{axis}", ctypes.c_uint) for what in ("grid", "block") for axis in "xyz"),
        ("shared", ctypes.c_uint),
        ("parameters", ctypes.POINTER(ctypes.c_void_p)),
        ("extra", ctypes.POINTER(ctypes.c_void_p)),
        ("kernel", ctypes.c_void_p),
        ("context", ctypes.c_void_p),
    )


class _Driver:
    """Reads a captured graph through libcuda; Unreadable for what it does not tell."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise Unreadable(str(error)) from None
        self._mapped = _mapped()

    def nodes(self, graph: int) -> list[int]:
        count = ctypes.c_size_t()
        self._call("cuGraphGetNodes", ctypes.c_void_p(graph), None, ctypes.byref(count))
        nodes = (ctypes.c_void_p * count.value)()
        self._call("cuGraphGetNodes", ctypes.c_void_p(graph), nodes, ctypes.byref(count))
        return [int(node or 0) for node in nodes]

    def kind(self, node: int) -> int:
        kind = ctypes.c_int()
        self._call("cuGraphNodeGetType", ctypes.c_void_p(node), ctypes.byref(kind))
        return kind.value

    def extent(self, node: int, kind: int) -> tuple[str, ...]:
        name = "cuGraphMemcpyNodeGetParams" if kind == _MEMCPY else "cuGraphMemsetNodeGetParams"
        words = (ctypes.c_uint64 * 32)()
        self._call(name, ctypes.c_void_p(node), words)
        return self._without_addresses(bytes(words))

    def launch(self, node: int, kernels: Mapping[int, Any]) -> Launch:
        """Return what a node does; `kernels` are Triton's by their functions' handles."""
        kind = self.kind(node)
        if kind in (_MEMCPY, _MEMSET):
            arguments = self.extent(node, kind)
            return Launch("copy" if kind == _MEMCPY else "fill", arguments=arguments)
        if kind == _EMPTY:
            return Launch("nothing")
        if kind != _KERNEL:
            raise Unreadable(f"a node of kind {kind}")
        return self._kernel(node, kernels)

    def _kernel(self, node: int, kernels: Mapping[int, Any]) -> Launch:
        node_parameters = _KernelParameters()
        self._call(
            "cuGraphKernelNodeGetParams_v2", ctypes.c_void_p(node), ctypes.byref(node_parameters)
        )
        function = ctypes.c_void_p(node_parameters.function)
        if not function and node_parameters.kernel:
            at = ctypes.byref(function)
            self._call("cuKernelGetFunction", at, ctypes.c_void_p(node_parameters.kernel))
        name = ctypes.c_char_p()
        self._call("cuFuncGetName", ctypes.byref(name), function)
        compiled = kernels.get(function.value or 0)
        content = _object(compiled) if compiled is not None else None
        code = digest(content) if content is not None else f"function {function.value}"
        return Launch(
            (name.value or b"").decode(errors="replace"),
            (node_parameters.grid_x, node_parameters.grid_y, node_parameters.grid_z),
            (node_parameters.block_x, node_parameters.block_y, node_parameters.block_z),
            node_parameters.shared,
            code,
            self._arguments(function, node_parameters),
            {what: self._attribute(function, n) for what, n in _ATTRIBUTES.items()},
        )

    def _arguments(
        self, function: ctypes.c_void_p, node_parameters: _KernelParameters
    ) -> tuple[str, ...]:
        if not node_parameters.parameters:
            raise Unreadable("a kernel whose arguments come in one piece")
        words: list[str] = []
        offset, size = ctypes.c_size_t(), ctypes.c_size_t()
        for place in range(4096):
            at = (ctypes.c_size_t(place), ctypes.byref(offset), ctypes.byref(size))
            if self._library.cuFuncGetParamInfo(function, *at):
                return tuple(words)
            content = ctypes.string_at(node_parameters.parameters[place], size.value)
            words += [f"{offset.value}:{size.value}", *self._without_addresses(content)]
        raise Unreadable("a kernel of very many arguments")

    def _without_addresses(self, content: bytes) -> tuple[str, ...]:
        words = [content[i : i + _WORD] for i in range(0, len(content), _WORD)]
        # No kernel reads the host's memory by an argument: in a structure it is what its padding
        # held before.
        is_structure = len(content) > _WORD
        return tuple(
            "address" if self._is_address(word, is_structure) else word.hex() for word in words
        )

    def _is_address(self, word: bytes, is_structure: bool) -> bool:
        if len(word) < _WORD:
            return False
        value = int.from_bytes(word, "little")
        if is_structure and any(start <= value < end for start, end in self._mapped):
            return True
        kind, at = ctypes.c_uint(), ctypes.c_uint64(value)
        status = self._library.cuPointerGetAttribute(ctypes.byref(kind), _MEMORY_TYPE, at)
        return bool(status == 0 and kind.value)

    def _attribute(self, function: ctypes.c_void_p, number: int) -> float:
        value = ctypes.c_int()
        self._call("cuFuncGetAttribute", ctypes.byref(value), ctypes.c_int(number), function)
        return float(value.value)

    def _call(self, name: str, *words: Any) -> None:
        try:
            status = getattr(self._library, name)(*words)
        except AttributeError:
            raise Unreadable(f"the driver has no {name}") from None
        if status:
            raise Unreadable(f"{name} says {status}")
