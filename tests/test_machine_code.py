"""Machine code that is the same, and what changed in it: objects for sm_90, made without a GPU."""

from __future__ import annotations

import base64
import ctypes
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_kopt.decide.verdict import Decision, KernelChange, Verdict
from pytest_kopt.sameness import launches
from pytest_kopt.sameness.launch_recording import Launch, Recording, differences
from pytest_kopt.sameness.objects import digest, figures, occupancy, tool_path
from pytest_kopt.show.exports.comment import comment
from pytest_kopt.show.terminal import verdict_lines

pytest.importorskip("triton")
ARCH = "sm_90"
KERNEL = """\
import triton
import triton.language as tl


@triton.jit
def scaled(x, y, n, BLOCK: tl.constexpr):
    # A comment.
    pid = tl.program_id(0)
    offsets = pid * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in tl.range(0, 8):
        total += tl.load(x + offsets + step * n, mask=mask, other=0.0)
    tl.store(y + offsets, total * 2.0, mask=mask)
"""


#: Compiles versions that it reads, source, warps, block and alignment of each, for an H200.
COMPILE = """\
import base64, importlib.util, json, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

found = {}
for name, (path, warps, block, aligned) in json.load(sys.stdin).items():
    spec = importlib.util.spec_from_file_location(name.replace(" ", "_"), path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made = ASTSource(
        fn=module.scaled,
        signature={"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"},
        constexprs={"BLOCK": block},
        attrs={(i,): [["tt.divisibility", 16]] for i in range(3)} if aligned else {},
    )
    target = GPUTarget("cuda", 90, 32)
    kernel = triton.compile(made, target=target, options={"num_warps": warps})
    cubin = base64.b64encode(kernel.asm["cubin"]).decode()
    found[name] = [cubin, warps, kernel.metadata.shared]
print(json.dumps(found))
"""
VERSIONS: dict[str, tuple[str, int, int, bool]] = {
    "plain": (KERNEL, 4, 1024, True),
    "other lines": (KERNEL.replace("    # A comment.\n", "\n" * 7), 4, 1024, True),
    "num_warps": (KERNEL, 8, 1024, True),
    "mask": (KERNEL.replace("offsets < n", "offsets <= n"), 4, 1024, True),
    "constant": (KERNEL.replace("total * 2.0", "total * 3.0"), 4, 1024, True),
    "trip count": (KERNEL.replace("range(0, 8)", "range(0, 9)"), 4, 1024, True),
    "narrower loads": (KERNEL, 4, 1024, False),
    "block": (KERNEL, 4, 2048, True),
}


@dataclass(frozen=True)
class Kernel:
    """A compiled version, and how many warps and bytes of shared memory a block of it has."""

    cubin: bytes
    warps: int
    shared: int


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    """Compile the versions in a process of its own: this one may have Triton's interpreter."""
    folder, given = tmp_path_factory.mktemp("kernels"), {}
    for name, (source, *rest) in VERSIONS.items():
        path = folder / f"{name}.py"
        path.write_text(source)
        given[name] = [str(path), *rest]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", COMPILE],
        input=json.dumps(given),
        env={**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    return {name: Kernel(base64.b64decode(c), w, s) for name, (c, w, s) in found.items()}


def launch(kernel: Kernel, grid: int = 132, n: int = 4096) -> Recording:
    """Return what a recording of one launch of a compiled kernel is."""
    code, block = digest(kernel.cubin), (kernel.warps * 32, 1, 1)
    arguments = ("0:8", "address", f"{n:x}")
    made = Launch("scaled", (grid, 1, 1), block, kernel.shared, code, arguments)
    return Recording((made,), {code: kernel.cubin})


def test_lines_and_comments_are_no_machine_code(versions: dict[str, Kernel]) -> None:
    """The bytes differ, by debug information; what a device sees is the same."""
    plain, moved = versions["plain"], versions["other lines"]
    assert plain.cubin != moved.cubin and digest(plain.cubin) == digest(moved.cubin)
    assert launch(plain).is_same(launch(moved))


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("num_warps", "threads"),
        ("mask", ""),
        ("constant", ""),
        ("trip count", ""),
        ("narrower loads", "loads 128 bit"),
        ("block", "loads 128 bit"),
    ],
)
def test_another_kernel_is_another(versions: dict[str, Kernel], name: str, figure: str) -> None:
    before, after = launch(versions["plain"]), launch(versions[name])
    assert not before.is_same(after)
    (found,) = differences(before, after, ARCH)
    assert found.kernel == "scaled" and found.before and found.after
    if figure:
        assert found.before.get(figure, 0) != found.after.get(figure, 0), found


def test_how_it_is_launched_counts(versions: dict[str, Kernel]) -> None:
    known = launch(versions["plain"])
    assert known.is_same(launch(versions["plain"]))
    for other in (launch(versions["plain"], grid=264), launch(versions["plain"], n=8192)):
        assert not known.is_same(other)
    twice = Recording(known.launches * 2, known.objects)
    assert not known.is_same(twice)
    (found,) = differences(known, twice, ARCH)
    assert (found.before["launches"], found.after["launches"]) == (1, 2)
    fill = Launch("fill", arguments=("0", "4"))
    (found,) = differences(known, Recording((*known.launches, fill), known.objects), ARCH)
    assert found == KernelChange(kernel="fill", after={"launches": 1})


def test_what_could_not_be_read_is_never_the_same(versions: dict[str, Kernel]) -> None:
    known = launch(versions["plain"])
    unread = Recording(known.launches, known.objects, "a node of kind 3")
    assert not unread.is_same(unread) and not known.is_same(unread)
    fill = Launch("fill", arguments=("0", "4"))
    (of_triton,) = (
        Launch(launch.name, (), (launch.block[0],), launch.shared, launch.code)
        for launch in known.launches
    )
    unread = Recording((of_triton,), known.objects, "a node of kind 3")
    assert differences(Recording((*known.launches, fill), known.objects), unread, ARCH) == []


def test_figures_are_those_of_the_tools(versions: dict[str, Kernel], tmp_path: Path) -> None:
    tool = tool_path("cuobjdump")
    if tool is None:
        pytest.skip("no cuobjdump")
    kernel = versions["plain"]
    path = tmp_path / "kernel.cubin"
    path.write_bytes(kernel.cubin)
    told = subprocess.check_output([tool, "-res-usage", path], text=True)
    usage = re.search(r"REG:(\d+) STACK:(\d+)", told)
    assert usage
    found = figures(kernel.cubin, 128, kernel.shared, ARCH)
    assert (found["registers"], found["stack"]) == (float(usage[1]), float(usage[2]))
    code = subprocess.check_output([tool, "-sass", path], text=True)
    assert found["loads 128 bit"] == len(re.findall(r"\bLDG\S*\.128", code)) > 0
    assert found["stores 128 bit"] == len(re.findall(r"\bSTG\S*\.128", code)) > 0
    assert found["occupancy"] == occupancy(int(usage[1]), 128, 0, ARCH)


@pytest.mark.parametrize(
    ("registers", "threads", "shared", "percent"),
    [
        (32, 128, 0, 100.0),
        # 65536 / (128 * 128) = 4 blocks of 4 warps of 64.
        (128, 128, 0, 25.0),
        # 228 KiB / (100 KiB + 1 KiB) = 2 blocks.
        (32, 128, 100 * 1024, 12.5),
        # At most 32 blocks, of one warp each.
        (32, 32, 0, 50.0),
        (32, 1024, 0, 100.0),
    ],
)
def test_occupancy(registers: int, threads: int, shared: int, percent: float) -> None:
    """By hand, from the CUDA programming guide's limits for compute capability 9.0."""
    assert occupancy(registers, threads, shared, ARCH) == percent
    assert occupancy(registers, threads, shared, "sm_35") is None


PTX = b"""\
//
.version 8.4
.visible .entry f(.param .u64 x)
{
    .loc 1 7 3
    ld.global.v4.b32 {%r1, %r2, %r3, %r4}, [%rd1];  // a.py:3
    @%p1 bar.sync 0;
    st.global.b32 [%rd2], %r1;
}
"""


def test_ptx_is_read_where_there_is_nothing_else() -> None:
    assert digest(PTX) == digest(PTX.replace(b".loc 1 7 3", b".loc 1 9 1").replace(b"a.py:3", b"x"))
    assert digest(PTX) != digest(PTX.replace(b".v4", b".v2"))
    found = figures(PTX, 128, 0, ARCH)
    assert (found["loads 128 bit"], found["stores"], found["barriers"]) == (1.0, 1.0, 1.0)


def test_what_changed_is_told(versions: dict[str, Kernel]) -> None:
    (found,) = differences(launch(versions["plain"]), launch(versions["num_warps"]), ARCH)
    verdict = Verdict(
        decision=Decision.ACCEPTED,
        reason="faster",
        compare="paired",
        policy="primus",
        kernels=[found.model_copy(update={"case": "M1"})],
    )
    line = next(line for line in verdict_lines(verdict) if line.startswith("kernel "))
    assert "scaled: " in line and "threads 128 -> 256" in line and "(first in M1)" in line
    assert "threads 128 -" in comment(verdict)


def test_bytes_that_no_capture_repeats_are_no_codes() -> None:
    """A struct is padded with whatever was there; a scalar beside the padding still counts."""
    first, again = (Launch("clamp", arguments=("0:8", "0000803f" + end)) for end in ("11", "22"))
    settled = first.settled(again)
    assert settled.arguments == ("0:8", "0000803f..")
    assert settled.is_same(Launch("clamp", arguments=("0:8", "0000803f33")))
    assert not settled.is_same(Launch("clamp", arguments=("0:8", "0000003f11")))
    assert not settled.is_same(Launch("clamp", arguments=("0:8", "address")))
    assert not settled.is_same(Launch("clamp", (2,), arguments=settled.arguments))
    assert Recording((settled,)).is_same(Recording((first,)))
    assert differences(Recording((settled,)), Recording((first,)), ARCH) == []


def test_what_padding_holds_of_the_host_is_no_argument() -> None:
    """A pointer into this process in a structure is left over from a stack; an integer is not."""
    driver = object.__new__(launches._Driver)
    driver._library = cast("Any", SimpleNamespace(cuPointerGetAttribute=lambda *asked: 1))
    driver._mapped = launches._mapped()
    buffer = ctypes.create_string_buffer(64)
    here = ctypes.addressof(buffer).to_bytes(8, "little")
    size = (4096).to_bytes(8, "little")
    assert driver._without_addresses(size + here) == (size.hex(), "address")
    assert driver._without_addresses(here) == (here.hex(),)
