"""Measure the first three steps of a GEMM, attention, RMSNorm and an fp8 GEMM, next to libraries.

python benchmarks/start_here.py OUT.json

The steps are kernels of `start_here_kernels.py` and of `conftest_templates/kernels`. Each step has
a few configurations; the fastest goes on. Then all steps and the libraries take turns: a turn is
one replay of a CUDA graph that holds about 20 ms of calls, a figure the median over the turns.
With TRITON_INTERPRET=1 small shapes run on the CPU: results are checked and no time is written.
"""

from __future__ import annotations

import datetime
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from torch.nn import functional
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "conftest_templates"), str(ROOT / "benchmarks")]

import start_here_kernels as steps  # noqa: E402
from kernels import attention, cross_entropy, gemm_bf16, gemm_fp8, rmsnorm  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
SMS = torch.cuda.get_device_properties(0).multi_processor_count if GPU else 1
OPERAND = tl.bfloat16 if GPU else tl.float32
TURNS, TURN_MS = 15, 20.0
#: Least signal-to-noise ratio of a result, dB.
LEAST_SNR = {"gemm_fp8": 25.0}

Config = dict[str, Any]
Call = Callable[[], torch.Tensor]


@dataclass
class Step:
    """A version of a kernel."""

    # What this version does, for the page.
    name: str
    # Configurations that are tried.
    configs: tuple[Config, ...]
    # Returns the call that a configuration stands for.
    prepared: Callable[[Config], Call]


@dataclass
class Op:
    """What is computed, at which shape, by which versions."""

    # Its name in the file of results.
    name: str
    # The shape in words.
    shape: str
    # "FLOP" or "byte".
    unit: str
    # FLOPs or bytes of a call.
    work: float
    # The result in float64, on demand.
    reference: Call
    # Calls of libraries by their names.
    libraries: dict[str, Call]
    # Our versions, in their order.
    steps: tuple[Step, ...]


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16)


def tile(m: int, n: int, k: int, stages: int, warps: int) -> Config:
    names = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k}
    return names | ({"num_stages": stages, "num_warps": warps} if GPU else {})


def gemm_steps(
    a: torch.Tensor, b: torch.Tensor, scales: tuple[torch.Tensor, torch.Tensor] | None, last: Step
) -> tuple[Step, ...]:
    """Return the steps of a @ b in bf16 or, with scales, of a @ b.T in fp8."""
    (m, k), n = a.shape, b.shape[1] if scales is None else b.shape[0]
    b_k, b_n = b.stride() if scales is None else reversed(b.stride())
    left_scale, right_scale = scales or (a, b)
    operand = OPERAND if scales is None else a.dtype
    operand = tl.float8e4nv if operand == torch.float8_e4m3fn else operand
    common = {"GROUP": 8, "SCALED": scales is not None, "OPERAND": operand}
    bytes_k = 64 if scales is None else 128

    def grid(config: Config) -> tuple[int]:
        return (triton.cdiv(m, config["BLOCK_M"]) * triton.cdiv(n, config["BLOCK_N"]),)

    def pointers(config: Config) -> Call:
        def call() -> torch.Tensor:
            out = torch.empty(m, n, device=DEVICE, dtype=torch.bfloat16)
            steps.gemm_pointers[grid(config)](
                *(a, b, left_scale, right_scale, out, m, n, k, b_k, b_n), **common, **config
            )
            return out

        return call

    def descriptors(config: Config) -> Call:
        tile_m, tile_n, tile_k = config["BLOCK_M"], config["BLOCK_N"], config["BLOCK_K"]

        def call() -> torch.Tensor:
            out = torch.empty(m, n, device=DEVICE, dtype=torch.bfloat16)
            right = [tile_k, tile_n] if scales is None else [tile_n, tile_k]
            steps.gemm_descriptors[grid(config)](
                TensorDescriptor.from_tensor(a, [tile_m, tile_k]),
                TensorDescriptor.from_tensor(b, right),
                *(left_scale, right_scale),
                TensorDescriptor.from_tensor(out, [tile_m, tile_n]),
                *(m, n, k),
                **common,
                **config,
            )
            return out

        return call

    first = (tile(128, 128, bytes_k, 3, 8), tile(128, 128, bytes_k, 4, 4))
    second = (tile(128, 256, bytes_k, 3, 8), tile(128, 128, bytes_k, 4, 4))
    return (
        Step("pointers, 128 x 128", first, pointers),
        Step("tensor descriptors (TMA), larger tile", second, descriptors),
        last,
    )


def with_tiles(module: Any, config: Config, call: Call, constant: str = "HOPPER") -> torch.Tensor:
    """Return what a template computes with another configuration for sm_90."""
    own = getattr(module, constant)
    setattr(module, constant, config)
    try:
        return call()
    finally:
        setattr(module, constant, own)


def persistent(module: Any, bytes_k: int, call: Call) -> Step:
    """Return the step of a template's GEMM, whose configuration is its constant HOPPER."""

    def prepared(config: Config) -> Call:
        def configured() -> torch.Tensor:
            return with_tiles(module, config, call)

        return configured

    configs = (
        tile(128, 256, bytes_k, 3, 8),
        tile(128, 256, bytes_k, 4, 8),
        tile(256, 128, bytes_k, 3, 8),
        tile(128, 128, bytes_k, 5, 4),
    )
    return Step("persistent programs, half a tile a store (the template)", configs, prepared)


def gemm(size: int) -> Op:
    a, b = randn(size, size), randn(size, size)
    last = persistent(gemm_bf16, 64, lambda: gemm_bf16.gemm(a, b))
    return Op(
        "gemm_bf16",
        f"M = N = K = {size}, bf16",
        "FLOP",
        2 * size**3,
        lambda: a.double() @ b.double(),
        {"torch.matmul (cuBLAS)": lambda: a @ b},
        gemm_steps(a, b, None, last),
    )


def gemm_at(m: int, n: int, k: int) -> Op:
    """Return the template as it is at another shape."""
    a, b = randn(m, k), randn(k, n)
    return Op(
        f"gemm_bf16_{m}_{n}_{k}",
        f"M = {m}, N = {n}, K = {k}, bf16",
        "FLOP",
        2 * m * n * k,
        lambda: a.double() @ b.double(),
        {"torch.matmul (cuBLAS)": lambda: a @ b},
        (Step("the template", ({},), lambda _: lambda: gemm_bf16.gemm(a, b)),),
    )


def gemm_few_tiles(size: int) -> Op:
    """Return a product with fewer tiles than SMs, over configurations of the template."""
    a, b = randn(size, size), randn(size, size)

    def prepared(config: Config) -> Call:
        return lambda: with_tiles(
            gemm_bf16, config, lambda: gemm_bf16.gemm(a, b), "HOPPER_FEW_TILES"
        )

    configs = (
        *(tile(64, 64, 64, 5, 4), tile(64, 64, 128, 4, 4), tile(64, 64, 256, 3, 4)),
        *(tile(64, 32, 128, 4, 4), tile(64, 32, 256, 3, 4), tile(64, 32, 64, 6, 4)),
    )
    return Op(
        "gemm_bf16_few_tiles",
        f"M = N = K = {size}, bf16",
        "FLOP",
        2 * size**3,
        lambda: a.double() @ b.double(),
        {"torch.matmul (cuBLAS)": lambda: a @ b},
        (Step("small tiles (the template)", configs, prepared),),
    )


def gemm_training(size: int) -> Op:
    a, b = randn(size, size).requires_grad_(), randn(size, size).requires_grad_()
    grad = randn(size, size)
    exact = a.detach().double().requires_grad_(), b.detach().double().requires_grad_()
    return Op(
        "gemm_bf16_training",
        f"M = N = K = {size}, bf16, forward and backward",
        "FLOP",
        6 * size**3,
        gradient(lambda: exact[0] @ exact[1], grad.double(), exact),
        {"torch.matmul (cuBLAS)": gradient(lambda: a @ b, grad, (a, b))},
        (
            Step(
                "the template",
                ({},),
                lambda _: gradient(lambda: gemm_bf16.gemm(a, b), grad, (a, b)),
            ),
        ),
    )


def quantised(size: int) -> Op:
    dtype = torch.float8_e4m3fn
    left, left_scale = gemm_fp8._quantise(randn(size, size), dtype)
    right, right_scale = gemm_fp8._quantise(randn(size, size), dtype)

    def library(fast: bool) -> Call:
        return lambda: torch._scaled_mm(
            *(left, right.T, left_scale, right_scale),
            out_dtype=torch.bfloat16,
            use_fast_accum=fast,
        )

    scales = left_scale, right_scale
    last = persistent(gemm_fp8, 128, lambda: gemm_fp8._launch(left, right, *scales))
    return Op(
        "gemm_fp8",
        f"M = N = K = {size}, e4m3, one scale a tensor, operands quantised before",
        "FLOP",
        2 * size**3,
        lambda: left.double() @ right.double().T * (left_scale * right_scale).double(),
        {
            "torch._scaled_mm, fast accumulation": library(True),
            "torch._scaled_mm": library(False),
        },
        gemm_steps(left, right, scales, last),
    )


def causal_attention(batch: int, heads: int, rows: int, width: int) -> Op:
    q, k, v = (randn(batch, heads, rows, width) for _ in range(3))
    scale = math.log2(math.e) / math.sqrt(width)

    def flat(x: torch.Tensor, block: int) -> TensorDescriptor:
        return TensorDescriptor.from_tensor(x.view(-1, rows, width), [1, block, width])

    def ours(kernel: Any, described: bool) -> Callable[[Config], Call]:
        def prepared(config: Config) -> Call:
            def call() -> torch.Tensor:
                out = torch.empty_like(q)
                tensors: list[Any] = [q, k, v, out]
                if described:
                    blocks = [config[f"BLOCK_{side}"] for side in "MNNM"]
                    tensors = [flat(x, n) for x, n in zip(tensors, blocks, strict=True)]
                kernel[(triton.cdiv(rows, config["BLOCK_M"]), batch * heads)](
                    *tensors, rows, rows, scale, D=width, OPERAND=OPERAND, **config
                )
                return out

            return call

        return prepared

    def template(config: Config) -> Call:
        def call() -> torch.Tensor:
            return with_tiles(attention, config, lambda: attention.attention(q, k, v, True))

        return call

    def size(m: int, n: int, stages: int, warps: int, registers: int = 0) -> Config:
        names = {"BLOCK_M": m, "BLOCK_N": n}
        limit = {"maxnreg": registers} if registers else {}
        return names | ({"num_stages": stages, "num_warps": warps, **limit} if GPU else {})

    def sdpa(backend: str) -> Call:
        def call() -> torch.Tensor:
            with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, backend)):
                return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        return call

    def reference() -> torch.Tensor:
        hidden = torch.ones(rows, rows, device=DEVICE, dtype=torch.bool).triu(1)
        parts = [
            (x.double() @ y.double().T / math.sqrt(width)).masked_fill(hidden, -math.inf).softmax(1)
            @ z.double()
            for x, y, z in zip(*(t.view(-1, rows, width) for t in (q, k, v)), strict=True)
        ]
        return torch.stack(parts).view(q.shape)

    return Op(
        "attention_forward",
        f"B = {batch}, H = {heads}, S = {rows}, D = {width}, causal, bf16",
        "FLOP",
        2 * batch * heads * rows * rows * width,  # two products, of which the mask leaves half
        reference,
        {
            "torch SDPA, cuDNN": sdpa("CUDNN_ATTENTION"),
            "torch SDPA, flash": sdpa("FLASH_ATTENTION"),
        },
        (
            Step(
                "pointers, 64 x 64, a mask in every block",
                (size(64, 64, 3, 4),),
                ours(steps.attention_pointers, False),
            ),
            Step(
                "tensor descriptors (TMA), larger tile",
                (size(128, 128, 2, 8), size(128, 64, 3, 8), size(128, 64, 3, 4)),
                ours(steps.attention_descriptors, True),
            ),
            Step(
                "a mask on the diagonal only, longest rows first (the template)",
                (
                    *(size(128, 128, 2, 8), size(128, 64, 2, 8), size(128, 64, 3, 8)),
                    *(size(64, 64, 2, 4), size(64, 64, 1, 4), size(64, 128, 1, 4)),
                    # Registers for two programs an SM: one multiplies during the other's softmax.
                    *(size(128, 64, 2, 8, 128), size(128, 32, 3, 8, 128)),
                ),
                template,
            ),
        ),
    )


def norm(rows: int, columns: int) -> Op:
    x, w = randn(rows, columns), randn(columns)
    whole = triton.next_power_of_2(columns)

    def ours(kernel: Any, programs: Callable[[Config], int]) -> Callable[[Config], Call]:
        def prepared(config: Config) -> Call:
            named = {key: value for key, value in config.items() if key != "PER_SM"}

            def call() -> torch.Tensor:
                out = torch.empty_like(x)
                kernel[(programs(config),)](x, w, out, rows, columns, 1e-6, **named)
                return out

            return call

        return prepared

    def size(block: int, warps: int, depth: int = 1, per_sm: int = 0) -> Config:
        named = {"BLOCK": block, "DEPTH": depth} | ({"PER_SM": per_sm} if per_sm else {})
        return named | ({"num_warps": warps} if GPU else {})

    def every_row(config: Config) -> int:
        return rows

    def few(config: Config) -> int:
        return min(rows, SMS * config["PER_SM"])

    return Op(
        "rmsnorm_forward",
        f"{rows} x {columns}, bf16",
        "byte",
        2 * (2 * rows * columns + columns),
        lambda: functional.rms_norm(x.double(), (columns,), w.double(), 1e-6),
        {"torch rms_norm": lambda: functional.rms_norm(x, (columns,), w, 1e-6)},
        (
            Step(
                "a row in blocks, read twice",
                (size(1024, 4), size(2048, 8)),
                ours(steps.rmsnorm_two_passes, every_row),
            ),
            Step(
                "a row in registers, read once",
                (size(whole, 8), size(whole, 16)),
                ours(steps.rmsnorm_one_pass, every_row),
            ),
            Step(
                "persistent programs, the next row on its way",
                (size(whole, 8, 2, 2), size(whole, 8, 3, 2), size(whole, 16, 2, 2)),
                ours(steps.rmsnorm_persistent, few),
            ),
        ),
    )


def gradient(call: Call, grad: torch.Tensor, wanted: tuple[torch.Tensor, ...]) -> Call:
    """Return a call that computes forward and backward; it returns the first gradient."""
    return lambda: torch.autograd.grad(call(), wanted, grad)[0]


def norm_training(rows: int, columns: int) -> Op:
    x, w, grad = randn(rows, columns), randn(columns), randn(rows, columns)
    leaves = (x.requires_grad_(), w.requires_grad_())
    exact = (x.detach().double().requires_grad_(), w.detach().double().requires_grad_())
    return Op(
        "rmsnorm_training",
        f"{rows} x {columns}, bf16, forward and backward",
        "byte",
        2 * 5 * rows * columns,
        gradient(
            lambda: functional.rms_norm(exact[0], (columns,), exact[1], 1e-6), grad.double(), exact
        ),
        {
            "torch rms_norm": gradient(
                lambda: functional.rms_norm(x, (columns,), w, 1e-6), grad, leaves
            )
        },
        (
            Step(
                "fused backward (the template)",
                ({},),
                lambda _: gradient(lambda: rmsnorm.rmsnorm(x, w), grad, leaves),
            ),
        ),
    )


def entropy_training(rows: int, columns: int) -> Op:
    logits = randn(rows, columns).requires_grad_()
    targets = torch.randint(columns, (rows,), device=DEVICE)
    grad = torch.randn(rows, device=DEVICE)

    def torchs(x: torch.Tensor, scale: torch.Tensor) -> Call:
        return gradient(
            lambda: functional.cross_entropy(x, targets, reduction="none"), scale.to(x.dtype), (x,)
        )

    return Op(
        "cross_entropy_training",
        f"{rows} x {columns}, bf16, forward and backward",
        "byte",
        2 * 3 * rows * columns,
        lambda: torchs(logits.detach().double().requires_grad_(), grad)(),
        {"torch cross_entropy": torchs(logits, grad)},
        (
            Step(
                "fused backward (the template)",
                ({},),
                lambda _: gradient(
                    lambda: cross_entropy.cross_entropy(logits, targets), grad, (logits,)
                ),
            ),
        ),
    )


class Compiled:
    """Keeps what Triton launched last, and how many launches there were."""

    def __init__(self) -> None:
        self.kernels: list[Any] = []
        run = JITFunction.run

        def recording(jitted: Any, *args: Any, **kwargs: Any) -> Any:
            kernel = run(jitted, *args, **kwargs)
            self.kernels.append(kernel)
            return kernel

        JITFunction.run = recording

    def figures(self) -> dict[str, int]:
        """Return registers and spills a thread, and the bytes of shared memory, of the last."""
        kernel = self.kernels[-1]
        return {
            "registers": kernel.n_regs,
            "spills": kernel.n_spills,
            "shared_bytes": kernel.metadata.shared,
            "warps": kernel.metadata.num_warps,
        }


def snr(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the signal-to-noise ratio in dB."""
    noise = (result.double() - exact).square().sum()
    return float(10 * torch.log10(exact.square().sum() / noise.clamp_min(1e-300)))


def captured(call: Call) -> Callable[[], float]:
    """Return a function that replays about TURN_MS of calls and returns the time of one, ms."""

    def timed(replay: Callable[[], Any], calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        replay()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    side.synchronize()
    one = torch.cuda.CUDAGraph()
    with torch.cuda.graph(one):
        call()
    one.replay()
    once = statistics.median(timed(one.replay, 1) for _ in range(5))
    calls = max(1, round(TURN_MS / once))
    many = torch.cuda.CUDAGraph()
    with torch.cuda.graph(many):
        for _ in range(calls):
            call()
    many.replay()
    return lambda: timed(many.replay, calls)


def conditions() -> dict[str, str]:
    """Return clock, power and temperature as the driver reports them."""
    names = "clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu,driver_version"
    words = ["nvidia-smi", f"--query-gpu={names}", "--format=csv,noheader"]
    run = subprocess.run(words, capture_output=True, text=True, check=False)
    lines = run.stdout.strip().splitlines()
    return dict(zip(names.split(","), lines[0].split(", "), strict=False)) if lines else {}


def measured(op: Op, compiled: Compiled) -> dict[str, Any]:
    """Check every version of an op, then time the libraries and the best of each step in turns."""
    exact = op.reference()
    rows: list[dict[str, Any]] = []
    turns: list[tuple[dict[str, Any], Callable[[], float]]] = []
    libraries = op.libraries if GPU else {}
    for name, call in libraries.items():
        row: dict[str, Any] = {"library": name}
        rows.append(row)
        try:
            row["snr_db"] = round(snr(call(), exact), 1)
            turns.append((row, captured(call)))
        except RuntimeError as error:  # a backend that this build of torch lacks
            row["error"] = str(error).splitlines()[0]
    for step in op.steps:
        row = {"step": step.name, "tried": []}
        rows.append(row)
        best: Callable[[], float] | None = None
        for config in step.configs if GPU else step.configs[:1]:
            tried: dict[str, Any] = {"config": config}
            row["tried"].append(tried)
            call = step.prepared(config)
            try:
                tried["snr_db"] = round(snr(call(), exact), 1)
                least = LEAST_SNR.get(op.name, 40.0)
                assert tried["snr_db"] > least, f"{op.name}, {step.name}: {tried}"
                if not GPU:
                    continue
                tried |= compiled.figures()
                turn = captured(call)
                tried["ms"] = statistics.median(turn() for _ in range(3))
            except Exception as error:  # a configuration that does not compile, or does not fit
                tried["error"] = (str(error).splitlines() or [type(error).__name__])[0]
                continue
            if best is None or tried["ms"] < row["ms"]:
                best, row["ms"] = turn, tried["ms"]
                row |= {key: value for key, value in tried.items() if key != "ms"}
        if best:
            turns.append((row, best))
    times: list[list[float]] = [[turn() for _, turn in turns] for _ in range(TURNS if GPU else 0)]
    for place, (row, _) in enumerate(turns):
        own = [turn[place] for turn in times]
        row["ms"] = statistics.median(own)
        row["rate"] = op.work / row["ms"] / 1e9  # TFLOPS, TB/s
        if turns[0][0].get("library"):
            ratios = [turn[0] / turn[place] for turn in times]
            row["of_library_pct"] = 100 * statistics.median(ratios)
            low, *_, high = statistics.quantiles(ratios, n=20)
            row["of_library_5_95_pct"] = [100 * low, 100 * high]
    return {
        "shape": op.shape,
        "unit": "TFLOPS" if op.unit == "FLOP" else "TB/s",
        "work": op.work,
        "rows": rows,
        "conditions": conditions() if GPU else {},
    }


def ops() -> tuple[Callable[[], Op], ...]:
    """Return what makes each op, so that one op's tensors are gone when the next begins."""
    if not GPU:
        return (
            lambda: gemm(128),
            lambda: quantised(128),
            lambda: causal_attention(1, 2, 256, 16),
            lambda: norm(6, 256),
            lambda: norm_training(6, 256),
            lambda: entropy_training(6, 256),
            lambda: gemm_training(128),
            lambda: gemm_at(64, 128, 72),
            lambda: gemm_few_tiles(64),
        )
    return (
        lambda: gemm(4096),
        lambda: quantised(4096),
        lambda: causal_attention(4, 16, 4096, 128),
        lambda: norm(16384, 8192),
        lambda: norm_training(16384, 8192),
        lambda: entropy_training(8192, 32000),
        lambda: gemm_training(4096),
        lambda: gemm_at(8192, 8192, 8192),
        lambda: gemm_at(1024, 8192, 4096),
        lambda: gemm_few_tiles(512),
    )


def main() -> None:
    torch.manual_seed(0)
    compiled = Compiled()
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if GPU else "cpu",
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "command": "python benchmarks/start_here.py OUT.json",
        "turns": TURNS,
        "ops": {},
    }
    for make in ops():
        op = make()
        result["ops"][op.name] = measured(op, compiled)
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")
        for row in result["ops"][op.name]["rows"]:
            name = row.get("library") or row["step"]
            print(
                op.name, name, *(f"{row.get(key)}" for key in ("ms", "of_library_pct")), flush=True
            )


if __name__ == "__main__":
    main()
