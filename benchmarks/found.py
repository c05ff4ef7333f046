"""Kernels that strangers wrote, on inputs near those that a case declares: which of them are wrong.

    python benchmarks/found.py OUT.json [--ops NAME…] [--seconds N]

Runs on the CPU in Triton's interpreter, with liger-kernel, fla-core and einops of the versions in
`strangers_ops.py` installed. Each operation is tried on what kopt tries in a round: other sizes,
values, layouts, gradients. The reference is in float64; where plain torch in float32 is right, the
operation has to be. Only inputs that a declaration has to exclude count. The interpreter lacks
three things, which come from here: float arguments as float32, `rsqrt` and `tanh` of libdevice, and
the first configuration of an autotuned kernel. The record has the operations, how many inputs each
was tried on, those for which it was wrong, and figures of what was found. A record that is there is
continued.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from strangers_ops import HELPERS, OPS, Op
from triton.language.extra import libdevice
from triton.runtime import interpreter

from pytest_kopt import snr
from pytest_kopt.cases.case import Case, declare
from pytest_kopt.cases.nearby.near_inputs import variants
from pytest_kopt.cases.order import CANDIDATE, INCUMBENT
from pytest_kopt.cases.running.heldout import try_variant
from pytest_kopt.cases.running.reference import observed

ROOT = Path(__file__).parents[1]
_ROWS, _COLUMNS, _SEED = 16, 64, 7
#: The cases of `strangers_ops.py` that the interpreter can run, and what excludes a use that the
#: package does not offer: sizes that a call fixes, and operands of two shapes.
_TRIED = {
    **dict.fromkeys(("softmax", "sparsemax", "layer_norm", "swiglu", "geglu", "relu_squared"), ""),
    **dict.fromkeys(("rms_norm", "kl_div", "tvd", "jsd", "fused_add_rms_norm"), "equal sizes"),
    **dict.fromkeys(("poly_norm", "group_norm"), "declared shapes, equal sizes"),
    # With fewer angles than rows rope reads past their end.
    "cross_entropy": "",
    "rope": "equal sizes",
    **dict.fromkeys(("fla_sigmoid", "fla_swish", "fla_logsigmoid", "fla_elu_p1"), ""),
}
_LOSS = {"x": "T(R, C)", "t": "torch.randint(C, (R,), device=DEVICE)"}
_ROPE = {"q": "T(2, 4, R, 64)", "k": "T(2, 2, R, 64)"}
_ANGLES = dict.fromkeys("cs", "T(3, 2, R, 32, g=False).repeat(1, 1, 1, 2)")
_MORE = [
    (
        "cross_entropy of each row",
        "cross_entropy",
        "LigerCrossEntropyFunction.apply(x, t, None, -100, 0.0, 0.0, 'none')[0]",
        "F.cross_entropy(x, t, reduction='none')",
        _LOSS,
        "consumes=(0,)",
    ),
    (
        "cross_entropy, smoothed",
        "cross_entropy",
        "LigerCrossEntropyFunction.apply(x, t, None, -100, 0.0, 0.1)[0]",
        "F.cross_entropy(x, t, label_smoothing=0.1)",
        _LOSS,
        "consumes=(0,)",
    ),
    (
        "kl_div of log-probabilities",
        "kl_div",
        "LigerKLDivLossFunction.apply(x.log(), y.log(), 'batchmean', True)",
        "F.kl_div(x.log(), y.log(), reduction='batchmean', log_target=True)",
        {"x": "P(R, C)", "y": "P(R, C).detach()"},
        "domain='equal sizes'",
    ),
    (
        "fused_linear_cross_entropy",
        "fused_linear_cross_entropy",
        "LigerFusedLinearCrossEntropyFunction.apply(x, w, t)[0]",
        "F.cross_entropy(x @ w.T, t)",
        {"x": "T(R, C)", "w": "T(96, C)", "t": "torch.randint(96, (R,), device=DEVICE)"},
        "",
    ),
    (
        "qwen2vl_mrope",
        "qwen2vl_mrope",
        "LigerQwen2VLMRopeFunction.apply(q, k, c, s, [8, 12, 12])",
        "plain_mrope(q, k, c, s)",
        {**_ROPE, **_ANGLES},
        "",
    ),
]
_PLAIN = """
def plain_mrope(q, k, c, s):
    parts = [8, 12, 12] * 2
    c, s = (
        torch.cat([x[i % 3] for i, x in enumerate(full.split(parts, -1))], -1)[:, None]
        for full in (c, s)
    )
    return q * c + rotate(q) * s, k * c + rotate(k) * s
"""


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def rsqrt(x):  # type: ignore[no-untyped-def]
    """Stand in for libdevice, which the interpreter does not have."""
    return 1.0 / tl.sqrt(x)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def tanh(x):  # type: ignore[no-untyped-def]
    """Stand in for libdevice, which the interpreter does not have."""
    return 2 * tl.sigmoid(2 * x) - 1


class Tuned:
    """An autotuned kernel that always has its first configuration."""

    def __init__(self, kernel: Any, configs: Any) -> None:
        self.kernel, self.config = kernel, configs[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.kernel, name)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **named: self.kernel[grid](*args, **{**self.config.kwargs, **named})


def complete_the_interpreter() -> None:
    """Give Triton's interpreter what these kernels need of a compiled Triton."""
    convert = interpreter._implicit_cvt

    def converted(argument: Any) -> Any:
        if type(argument) is not float:
            return convert(argument)
        handle = interpreter.TensorHandle(numpy.array([argument], numpy.float32), tl.float32)
        return tl.tensor(handle, tl.float32)

    interpreter._implicit_cvt = converted
    triton.autotune = lambda configs, key, **named: lambda kernel: Tuned(kernel, configs)
    libdevice.rsqrt, libdevice.tanh = rsqrt, tanh


def main() -> None:
    """Try them and write the record after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--ops", nargs="*")
    parser.add_argument("--seconds", type=float, default=75.0)
    given = parser.parse_args()
    complete_the_interpreter()
    more = [
        Op("liger-kernel", name, f"liger_kernel/ops/{file}.py", call, plain, inputs, True, declared)
        for name, file, call, plain, inputs, declared in _MORE
    ]
    ops = [*(op for op in OPS if op.name in _TRIED), *more]
    record: dict[str, Any] = {"operations": []}
    if given.out.exists():
        record = json.loads(given.out.read_text())
    done = {one["op"] for one in record["operations"]}
    record |= {
        "commit": _said("git", "rev-parse", "--short=12", "HEAD"),
        "command": "python benchmarks/found.py OUT.json",
        "machine": {
            "cpu": f"{len(os.sched_getaffinity(0))} cores, Triton's interpreter",
            "time": time.strftime("%Y-%m-%d %H:%M"),
            **{name: version(name) for name in ("torch", "triton", "liger-kernel", "fla-core")},
        },
    }
    for op in ops:
        if op.name in done or (given.ops and op.name not in given.ops):
            continue
        record["operations"].append(tried(op, given.seconds))
        given.out.write_text(json.dumps(record, indent=1) + "\n")
    if not given.ops:
        record["figures"] = figures()
        given.out.write_text(json.dumps(record, indent=1) + "\n")


def figures() -> dict[str, Any]:
    """Return errors of what was found, on inputs that show it at once."""
    from liger_kernel.ops import cross_entropy, group_norm, kl_div, rope

    group_norm.rsqrt = rsqrt
    torch.manual_seed(_SEED)
    found: dict[str, Any] = {"rope, largest error": {}, "group_norm": {}, "kl_div": {}}
    names: dict[str, Any] = {}
    exec(HELPERS, names)
    for batches, rows in ((1, 1), (2, 1), (3, 1), (2, 2)):
        inputs = torch.randn(batches, 4, rows, 64), torch.randn(batches, 2, rows, 64)
        angles = [torch.randn(1, rows, 32).repeat(1, 1, 2) for _ in range(2)]
        right = names["plain_rope"](*inputs, *angles)
        result = rope.LigerRopeFunction.apply(*inputs, *angles)
        error = max((a - b).abs().max().item() for a, b in zip(result, right, strict=True))
        found["rope, largest error"][f"{batches} batches, {rows} rows"] = error
    for mean in (0, 10, 100, 1000, 10_000):
        x = torch.randn(16, 8, 64) + mean
        w, b = torch.ones(8), torch.zeros(8)
        right = F.group_norm(x.double(), 4, eps=1e-6)
        result = group_norm.LigerGroupNormFunction.apply(x, w, b, 8, 4, 1e-6)
        found["group_norm"][f"mean {mean}"] = {
            "largest error": (result - right).abs().nan_to_num(0.0).max().item(),
            "NaN": int(result.isnan().sum()),
            "largest error of torch": (F.group_norm(x, 4, eps=1e-6) - right).abs().max().item(),
        }
    # What its backward adds to the gradient of a weight, one number a batch, as in the H200's run.
    added = torch.randn(1024, 4096).square().sum(-1).bfloat16()
    total = torch.zeros((), dtype=torch.bfloat16)
    for one in added:
        total += one
    found["1024 sums of 4096 squares, added in bfloat16"] = total.item()
    found["the same, added in float32"] = added.float().sum().item()
    x = torch.randn(64, 16).t().requires_grad_()
    labels = torch.randint(64, (16,))
    cross_entropy.LigerCrossEntropyFunction.apply(x, labels, None)[0].backward()
    found["cross_entropy, transposed: its gradient equals the logits"] = torch.equal(x.grad, x)
    for mean in (0, 100, 1000):
        p, q = ((torch.randn(16, 256).softmax(-1) + mean).bfloat16() for _ in range(2))
        logs = p.log()
        found["kl_div"][f"mean {mean}"] = {
            "theirs": kl_div.LigerKLDivLossFunction.apply(logs, q).item(),
            "torch": (F.kl_div(logs, q, reduction="none").float().sum() / 16).item(),
            "exact for these logarithms": F.kl_div(
                logs.double(), q.double(), reduction="batchmean"
            ).item(),
        }
    return found


def _said(*words: str) -> str:
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False).stdout[:-1]


def tried(op: Op, seconds: float) -> dict[str, Any]:
    """Return how many near inputs an operation was tried on, and those for which it was wrong."""
    theirs, plain, case = _case(op)
    count, wrong, start = 0, list[dict[str, str]](), time.monotonic()
    versions = {INCUMBENT: plain, CANDIDATE: theirs}
    for near in variants(case, _SEED):
        if time.monotonic() - start > seconds:
            wrong += [{"axis": "", "input": "", "what": f"not all were tried within {seconds} s"}]
            break
        trial = None if near.untried else try_variant(near, versions, "cpu", _SEED)
        if not trial or trial.outcomes.get(INCUMBENT) != "right" or not trial.required:
            continue
        count += 1
        if (outcome := trial.outcomes.get(CANDIDATE)) != "right":
            what = " ".join(trial.what[CANDIDATE].split())
            sizes = ", ".join(f"{tuple(x.shape)}" for x in _tensors(near.case))
            named = trial.variant or sizes
            wrong.append({"axis": trial.kind, "input": named, "what": f"{outcome}: {what}"})
    print(op.name, count, *wrong, sep="\n  ", flush=True)
    return {
        "package": op.package,
        "op": op.name,
        "domain": case.domain if isinstance(case.domain, str) else ", ".join(case.domain),
        "tried": count,
        "wrong": wrong,
    }


def _tensors(case: Case) -> list[torch.Tensor]:
    return [x for x in case.arguments() if isinstance(x, torch.Tensor)]


def _wide(x: Any) -> Any:
    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x


def _case(op: Op) -> tuple[Callable[..., Any], Callable[..., Any], Case]:
    module = importlib.import_module(op.file.removesuffix(".py").replace("/", "."))
    for name, stand_in in (("rsqrt", rsqrt), ("tanh", tanh)):
        if hasattr(module, name):
            setattr(module, name, stand_in)
    names: dict[str, Any] = {}
    exec(HELPERS + _PLAIN, names)
    names |= {"R": _ROWS, "C": _COLUMNS, "DEVICE": "cpu", "DTYPE": torch.float32, "snr": snr}

    def drawn(*shape: int, g: bool = op.backward, d: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.randn(*shape, dtype=d).requires_grad_(g)

    names["T"] = drawn
    names["P"] = lambda *shape: torch.randn(*shape).softmax(-1).requires_grad_(op.backward)
    arguments = ", ".join(op.inputs)
    function = re.match(r"\w+", op.call).group()  # type: ignore[union-attr]
    theirs = eval(f"lambda {arguments}: {op.call}", {**names, function: vars(module)[function]})
    plain = eval(f"lambda {arguments}: {op.plain}", names)
    inputs = eval(f"lambda: ({', '.join(op.inputs.values())},)", names)
    declared: Mapping[str, Any] = eval(f"dict({op.declared})", names)
    # The gates are those of bfloat16 on a GPU, and the domains hide what is found here.
    kept = {"domain": _TRIED.get(op.name, declared.get("domain", ""))} | {
        key: value for key, value in declared.items() if key == "consumes"
    }
    case = declare(
        "t.py::t",
        "memory",
        theirs,
        inputs=inputs,
        reference=lambda *inputs: plain(*map(_wide, inputs)),
        dims={"case": 1},
        nbytes=4096,
        backward=op.backward,
        **{key: value for key, value in kept.items() if value},
    )
    return theirs, plain, observed(case, _SEED)


if __name__ == "__main__":
    main()
