"""A small C kernel, compiled when imported and called with the tensors' addresses."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

import torch

NEEDS = "cpu"
REQUIRES = "gcc"

SOURCE = r"""
#include <math.h>
void rows(const float *x, float *y, long n, long width) {
    for (long r = 0; r < n; r++, x += width, y += width) {
        float top = x[0], total = 0;
        for (long c = 1; c < width; c++) top = x[c] > top ? x[c] : top;
        for (long c = 0; c < width; c++) total += y[c] = expf(x[c] - top);
        for (long c = 0; c < width; c++) y[c] /= total;
    }
}
"""


def _build():
    folder = Path(tempfile.mkdtemp())
    source, library = folder / "rows.c", folder / "rows.so"
    source.write_text(SOURCE)
    flags = ["-O3", "-shared", "-fPIC", str(source), "-o", str(library), "-lm"]
    subprocess.run(["gcc", *flags], check=True)
    function = ctypes.CDLL(str(library)).rows
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]
    function.restype = None
    return function


_rows = _build()


def softmax(x):
    on_host = x.detach().cpu().contiguous()
    y = torch.empty_like(on_host)
    _rows(on_host.data_ptr(), y.data_ptr(), x.shape[0], x.shape[1])
    return y.to(x.device)
