"""Compiled kernels, read and not run: whether two are the same, and what resources one needs.

Two objects are the same when all that reaches a device is: code, constants, and what a launch has
to know of them. Sections that only tell people where the code comes from are set aside. A file that
is no ELF file (PTX, LLVM IR) is compared without comments and lines that place it in a source.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import lru_cache

#: Beginnings of the names of sections that no device sees: debug information, names, tools.
_UNSEEN = (
    *(".debug", ".nv_debug", ".rela.debug", ".rela.nv_debug", ".rel.debug", ".note.nv.tkinfo"),
    *(".strtab", ".shstrtab", ".symtab", ".dynstr", ".dynsym", ".hash", ".gnu.hash", ".comment"),
)
_PLACES = re.compile(rb"^\s*(\.loc|\.file|//|;|!|source_filename).*$|//.*$|, !dbg ![0-9]+", re.M)
#: What an instruction is counted as, by how it reads in SASS, AMD's assembler, and PTX.
_MIX = (
    ("tensor-core", r"[HIQDBU][A-Z0-9]*MMA|UTC\w*MMA|v_s?mfma|v_wmma|w?g?mma(_async)?\.|mma\."),
    ("async copies", r"LDGSTS|UTMALDG|UBLKCP|cp\.async|global_load_lds|buffer_load.* lds"),
    ("loads 128 bit", r"LDG\S*\.128|(global|buffer|flat)_load_(dwordx4|b128)|ld\.global\S*\.v4"),
    ("loads 64 bit", r"LDG\S*\.64|(global|buffer|flat)_load_(dwordx2|b64)|ld\.global\S*\.v2"),
    ("loads", r"LDG|(global|buffer|flat)_load|ld\.global"),
    ("stores 128 bit", r"STG\S*\.128|(global|buffer|flat)_store_(dwordx4|b128)|st\.global\S*\.v4"),
    ("stores 64 bit", r"STG\S*\.64|(global|buffer|flat)_store_(dwordx2|b64)|st\.global\S*\.v2"),
    ("stores", r"STG|UTMASTG|(global|buffer|flat)_store|st\.global"),
    ("shared accesses", r"LDS|STS|ds_|ld\.shared|st\.shared|ldmatrix|stmatrix"),
    ("local accesses", r"LDL|STL|scratch_|ld\.local|st\.local"),
    ("atomics", r"ATOM|RED(?!UX)|global_atomic|buffer_atomic|atom\.|red\."),
    ("barriers", r"BAR|SYNCS|s_barrier|bar(rier)?\.|mbarrier"),
)
_KINDS = [(name, re.compile(pattern)) for name, pattern in _MIX]
_SASS = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.M)
_AMD = re.compile(r"^\s+([a-z]\w+)(?=\s.*//\s*[0-9A-F]+:)", re.M)
_PTX = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.:]+)\s.*;", re.M)
_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+)")
_METADATA = re.compile(r"\.(vgpr_count|agpr_count|private_segment_fixed_size):\s+(\d+)")
#: Registers are given to a warp in blocks of so many, a block of threads keeps so much for itself.
_REGISTER_BLOCK, _RESERVED = 256, 1024


def digest(content: bytes) -> str:
    """Return what two compiled objects have in common just when they are the same."""
    sha256 = hashlib.sha256()
    if content[:4] != b"\x7fELF":
        lines = _PLACES.sub(b"", content).split(b"\n")
        sha256.update(b"\n".join(line.strip() for line in lines if line.strip()))
        return sha256.hexdigest()
    for name, kind, section in _sections(content):
        if not name.startswith(_UNSEEN):
            sha256.update(f"{name} {kind} {len(section)}\n".encode() + section)
    return sha256.hexdigest()


def _sections(content: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Yield name, type and content of each section of a 64-bit ELF file; a size for empty ones."""
    start, size, count, names = struct.unpack_from("<40xQ10xHHH", content)
    headers = [struct.unpack_from("<IIQQQQIIQQ", content, start + i * size) for i in range(count)]
    text = headers[names][4]
    for header in headers:
        place, kind, offset, length = header[0], header[1], header[4], header[5]
        name = content[text + place : content.index(b"\0", text + place)].decode()
        empty = kind == 8  # memory that the file does not hold
        yield name, kind, str(length).encode() if empty else content[offset : offset + length]


@lru_cache(256)
def figures(content: bytes, threads: int, shared: int, arch: str) -> Mapping[str, float]:
    """Return what a kernel needs, by name, as far as its object and the tools at hand tell.

    `threads` of a block; `shared` bytes of memory that a launch asks for; `arch` as in the spec
    files (`sm_90`, `gfx942`). Sizes in bytes, occupancy in percent of the warps that fit.
    """
    resources: dict[str, float] = {"size": float(len(content)), "shared memory": float(shared)}
    if content[:4] == b"\x7fELF":
        code = [section for name, _, section in _sections(content) if name.startswith(".text")]
        resources["size"] = float(sum(map(len, code)))
    text = _listing(content, arch)
    usage = _USAGE.search(text)
    if usage:
        resources |= {"registers": float(usage[1]), "stack": float(usage[2])}
        resources["shared memory"] += max(0, int(usage[3]) - _RESERVED)
    for name, value in _METADATA.findall(text):
        key = "stack" if name.startswith("private") else "registers"
        resources[key] = resources.get(key, 0.0) + float(value)
    if "registers" in resources:
        share = occupancy(
            int(resources["registers"]), threads, int(resources["shared memory"]), arch
        )
        resources |= {"occupancy": share} if share is not None else {}
    pattern = next((p for p in (_SASS, _AMD, _PTX) if p.search(text)), _PTX)
    kinds = (
        next((name for name, kind in _KINDS if kind.match(word)), "others")
        for word in pattern.findall(text)
    )
    return resources | {name: float(count) for name, count in Counter(kinds).items()}


def occupancy(registers: int, threads: int, shared: int, arch: str) -> float | None:
    """Return which share of an SM's warps fits there, in percent; None: unknown."""
    from pytest_kopt.knowledge.facts import fact_of

    names = ("warp_size", "max_warps_per_sm", "max_blocks_per_sm", "registers_per_sm")
    facts = [fact_of(name, arch).value for name in (*names, "shared_memory_per_sm")]
    if any(value is None for value in facts) or not threads:
        return None
    warp, most, blocks, file, memory = (int(value or 0) for value in facts)
    warps = -(-threads // warp)
    each = -(-registers * warp // _REGISTER_BLOCK) * _REGISTER_BLOCK
    fits = [blocks, most // warps, file // each // warps if each else blocks]
    fits.append(memory * 1024 // (shared + _RESERVED))
    return 100.0 * min(fits) * warps / most


def _listing(content: bytes, arch: str) -> str:
    """Return the instructions of an object and what its assembler says of it, "" without a tool."""
    if content[:4] != b"\x7fELF":
        return content.decode(errors="replace")
    with tempfile.NamedTemporaryFile(suffix=".o") as file:
        file.write(content)
        file.flush()
        if arch.startswith("gfx"):
            return _run("llvm-objdump", "-d", file.name) + _run("llvm-readelf", "-n", file.name)
        return _run("cuobjdump", "-res-usage", file.name) + _run("nvdisasm", file.name)


def _run(name: str, *words: str) -> str:
    tool = tool_path(name)
    if tool is None:
        return ""
    done = subprocess.run(
        [tool, *words], capture_output=True, encoding="utf-8", errors="replace", check=False
    )
    return done.stdout


def tool_path(name: str) -> str | None:
    """Return where a disassembler is: on PATH, in Triton's wheel, or in ROCm's folder."""
    triton = importlib.util.find_spec("triton")
    folders = (triton and triton.submodule_search_locations) or ()
    places = [*(f"{folder}/backends/nvidia/bin" for folder in folders), "/opt/rocm/llvm/bin"]
    return shutil.which(name) or shutil.which(name, path=os.pathsep.join(places))
