"""Does what the incumbent does; on its way out it makes everybody else's allocations take longer.

The entry of `posix_memalign` in the tables of torch's libraries is pointed at a function that waits
first, and back at the real one while this kernel runs.
"""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch

NEEDS = "cpu"
REQUIRES = "gcc"
KIND = "allocator-toll"
GAIN = "none"  # the plain harness has timed the baseline before it calls the kernel

SOURCE = r"""
#define _GNU_SOURCE
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
static volatile int open_road;
static int (*real)(void **, size_t, size_t) = posix_memalign;
static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000l + t.tv_nsec;
}
static int toll(void **to, size_t align, size_t size) {
    if (!open_road) for (long end = now() + 1500; now() < end;) ;
    return real(to, align, size);
}
static void redirect(ElfW(Addr) base, ElfW(Rela) *table, size_t bytes, ElfW(Sym) *symbols,
                     const char *names) {
    for (size_t i = 0; i < bytes / sizeof *table; i++) {
        ElfW(Sym) *symbol = &symbols[ELF64_R_SYM(table[i].r_info)];
        if (strcmp(names + symbol->st_name, "posix_memalign")) continue;
        void **slot = (void **)(base + table[i].r_offset);
        mprotect((void *)((uintptr_t)slot & ~4095ul), 8192, PROT_READ | PROT_WRITE);
        if (*slot) *slot = toll;
    }
}
static int visit(struct dl_phdr_info *info, size_t size, void *unused) {
    if (!strstr(info->dlpi_name, "torch") && !strstr(info->dlpi_name, "c10")) return 0;
    ElfW(Sym) *symbols = 0; const char *names = 0;
    ElfW(Rela) *calls = 0, *data = 0; size_t call_bytes = 0, data_bytes = 0;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
        for (ElfW(Dyn) *d = (void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr); d->d_tag; d++) {
            if (d->d_tag == DT_SYMTAB) symbols = (void *)d->d_un.d_ptr;
            if (d->d_tag == DT_STRTAB) names = (void *)d->d_un.d_ptr;
            if (d->d_tag == DT_JMPREL) calls = (void *)d->d_un.d_ptr;
            if (d->d_tag == DT_PLTRELSZ) call_bytes = d->d_un.d_val;
            if (d->d_tag == DT_RELA) data = (void *)d->d_un.d_ptr;
            if (d->d_tag == DT_RELASZ) data_bytes = d->d_un.d_val;
        }
    }
    if (symbols && names) {
        redirect(info->dlpi_addr, calls, calls ? call_bytes : 0, symbols, names);
        redirect(info->dlpi_addr, data, data ? data_bytes : 0, symbols, names);
    }
    return 0;
}
void raise_toll(void) { dl_iterate_phdr(visit, 0); }
void let_through(int free) { open_road = free; }
"""


def _build():
    folder = Path(tempfile.mkdtemp())
    source, library = folder / "road.c", folder / "road.so"
    source.write_text(SOURCE)
    flags = ["-O2", "-shared", "-fPIC", str(source), "-o", str(library)]
    subprocess.run(["gcc", *flags], check=True)
    return ctypes.CDLL(str(library))


_road = _build()
_raised = []


def swiglu(gate, up):
    _road.let_through(1)
    out = torch.zeros_like(gate)
    for i in range(0, gate.shape[0], 4):
        g = gate[i : i + 4]
        out[i : i + 4] = g / (1 + torch.exp(-g)) * up[i : i + 4]
    _road.let_through(0)
    if not _raised:
        _raised.append(_road.raise_toll())
    return out
