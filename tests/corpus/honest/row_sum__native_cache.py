"""C sums, built at the first call into the user's cache folder and found there by later processes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

NEEDS = "cpu"
REQUIRES = "gcc"

SOURCE = r"""
#include <stdint.h>
void row_sum_f32(const float *restrict x, float *restrict y, int64_t n, int64_t w, int64_t step) {
    for (int64_t r = 0; r < n; r++) {
        const float *row = x + r * step;
        float part[16] = {0};
        int64_t c = 0;
        for (; c + 16 <= w; c += 16)
            for (int i = 0; i < 16; i++) part[i] += row[c + i];
        double total = 0;
        for (int i = 0; i < 16; i++) total += part[i];
        for (; c < w; c++) total += row[c];
        y[r] = (float)total;
    }
}
"""
FLAGS = ("-O3", "-march=native", "-std=c11", "-shared", "-fPIC")


def _cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "row_sum" / f"py{sys.version_info.major}{sys.version_info.minor}"


@functools.lru_cache(maxsize=None)
def _library() -> ctypes.CDLL | None:
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        return None
    digest = hashlib.sha256("\0".join((SOURCE, compiler, *FLAGS)).encode()).hexdigest()[:16]
    target = _cache_root() / f"row_sum_{digest}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            source = Path(folder, "row_sum.c")
            source.write_text(SOURCE)
            built = Path(folder, "row_sum.so")
            subprocess.check_call([compiler, *FLAGS, str(source), "-o", str(built)])
            os.replace(built, target)
    library = ctypes.CDLL(str(target))
    library.row_sum_f32.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64] * 3
    library.row_sum_f32.restype = None
    return library


def row_sum(x: torch.Tensor) -> torch.Tensor:
    supported = x.device.type == "cpu" and x.dtype is torch.float32 and x.stride(-1) == 1
    library = _library() if supported else None
    if library is None:
        return x.sum(-1)
    y = torch.empty(x.shape[0], dtype=x.dtype)
    library.row_sum_f32(x.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1], x.stride(0))
    return y
