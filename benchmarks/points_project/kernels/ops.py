"""Twelve kernels, each in two versions that differ by what CHANGES says."""

import torch
import triton
import triton.language as tl

VERSION = "before"
#: Whether sizes are such as a CPU takes, for a run that only shows that all goes through.
SMALL = False
_TILE = {"BM": 128, "BN": 128, "BK": 64, "GROUP": 8, "num_warps": 8, "num_stages": 3}
_WIDE = {**_TILE, "BN": 256}
#: By name: the kernel, its sizes, its settings before, and what the change sets.
CHANGES = {
    "wide tile, depth 32": ("gemm", (4096, 4096, 4096), _WIDE, {"BK": 32}),
    "four stages": ("gemm", (4096, 4096, 4096), _TILE, {"num_stages": 4}),
    "four warps": ("gemm", (4096, 4096, 4096), _TILE, {"num_warps": 4}),
    "half the rows": ("gemm", (4096, 4096, 4096), _TILE, {"BM": 64}),
    "small product, depth 32": ("gemm", (512, 512, 512), _TILE, {"BK": 32}),
    "scale, short blocks": ("scale", (16384, 8192), {"BLOCK": 4096}, {"BLOCK": 256}),
    "long product, depth 32": ("gemm", (2048, 4096, 11008), _WIDE, {"BK": 32}),
    "two stages": ("gemm", (2048, 4096, 11008), _TILE, {"num_stages": 2}),
    "half the columns": ("gemm", (4096, 4096, 4096), _WIDE, {"BN": 128}),
    "order of the tiles": ("gemm", (4096, 4096, 8192), _TILE, {"GROUP": 1}),
    "norm, two warps": ("norm", (16384, 8192), {"num_warps": 8}, {"num_warps": 2}),
    "fewer launches": ("launches", (1 << 14,), {"count": 40}, {"count": 37}),
}
NAMES = list(CHANGES)


@triton.jit
def _gemm(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr
):
    pid = tl.program_id(0)
    across = N // BN
    first = pid // (GROUP * across) * GROUP
    rows_here = tl.minimum(M // BM - first, GROUP)
    row = first + pid % (GROUP * across) % rows_here
    column = pid % (GROUP * across) // rows_here
    rows = row * BM + tl.arange(0, BM)
    columns = column * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    left = a + rows[:, None] * K + inner[None, :]
    right = b + inner[:, None] * N + columns[None, :]
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for _ in range(0, K, BK):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += BK
        right += BK * N
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.bfloat16))


@triton.jit
def _norm(x, out, hidden: tl.constexpr):
    columns = tl.arange(0, hidden)
    values = tl.load(x + tl.program_id(0) * hidden + columns).to(tl.float32)
    scale = 1 / tl.sqrt(tl.sum(values * values) / hidden + 1e-6)
    tl.store(out + tl.program_id(0) * hidden + columns, (values * scale).to(tl.bfloat16))


@triton.jit
def _scale(x, out, factor, BLOCK: tl.constexpr):
    places = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + places, tl.load(x + places) * factor)


def settings(name, version=None):
    """Return what a change's kernel is launched with in a version, by default this file's."""
    _, _, before, after = CHANGES[name]
    return before if (version or VERSION) == "before" else {**before, **after}


def draw(name, device):
    """Return fresh arguments of a change's kernel."""
    kind, sizes, _, _ = CHANGES[name]
    if SMALL:
        sizes = tuple(min(size, 64) for size in sizes)
    shapes = {"gemm": (sizes[:1] + sizes[2:], sizes[2:] + sizes[1:2])}.get(kind, (sizes,))
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return tuple(torch.randn(*shape, device=device, dtype=dtype) for shape in shapes)


def call(name, version, *arguments):
    """Call a change's kernel in a version."""
    kind = CHANGES[name][0]
    if not arguments[0].is_cuda:
        return reference(name, *arguments, repeats=2 if version == "before" else 1)
    how = settings(name, version)
    if kind == "gemm":
        a, b = arguments
        (m, k), n = a.shape, b.shape[1]
        out = torch.empty((m, n), device=a.device, dtype=a.dtype)
        _gemm[(m // how["BM"] * (n // how["BN"]),)](a, b, out, m, n, k, **how)
        return out
    (x,) = arguments
    out = torch.empty_like(x)
    if kind == "norm":
        _norm[(x.shape[0],)](x, out, hidden=x.shape[1], **how)
    elif kind == "scale":
        _scale[(x.numel() // how["BLOCK"],)](x, out, 2.0, **how)
    else:
        for _ in range(how["count"]):
            _scale[(x.numel() // 1024,)](x, out, 2.0, BLOCK=1024)
    return out


def reference(name, *arguments, repeats=1):
    """Compute the same by torch, in the arguments' precision."""
    kind = CHANGES[name][0]
    for _ in range(repeats):
        if kind == "gemm":
            out = arguments[0] @ arguments[1]
        elif kind == "norm":
            (x,) = arguments
            out = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        else:
            out = arguments[0] * 2.0
    return out


def wide_tile(a, b):
    return call("wide tile, depth 32", VERSION, a, b)


def four_stages(a, b):
    return call("four stages", VERSION, a, b)


def four_warps(a, b):
    return call("four warps", VERSION, a, b)


def half_the_rows(a, b):
    return call("half the rows", VERSION, a, b)


def small_product(a, b):
    return call("small product, depth 32", VERSION, a, b)


def short_blocks(x):
    return call("scale, short blocks", VERSION, x)


def long_product(a, b):
    return call("long product, depth 32", VERSION, a, b)


def two_stages(a, b):
    return call("two stages", VERSION, a, b)


def half_the_columns(a, b):
    return call("half the columns", VERSION, a, b)


def order_of_tiles(a, b):
    return call("order of the tiles", VERSION, a, b)


def two_warps(x):
    return call("norm, two warps", VERSION, x)


def fewer_launches(x):
    return call("fewer launches", VERSION, x)


FUNCTIONS = (
    *(wide_tile, four_stages, four_warps, half_the_rows, small_product, short_blocks),
    *(long_product, two_stages, half_the_columns, order_of_tiles, two_warps, fewer_launches),
)
