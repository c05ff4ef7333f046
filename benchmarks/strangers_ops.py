"""Operations of packages that others wrote: how each is called, and the same in plain torch.

`plain` is an expression of the arguments' names: the baseline as it is written, the reference with
every floating-point argument in float64. R rows and C columns are the session's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """A distribution, its import name, and what it needs besides torch and Triton."""

    version: str
    module: str
    needs: tuple[str, ...] = ()
    on_cpu: bool = False


PACKAGES = {
    "liger-kernel": Package("0.8.5", "liger_kernel", on_cpu=True),
    "fla-core": Package("0.6.0", "fla", ("einops",), on_cpu=True),
    "flag-gems": Package("5.0.2", "flag_gems", ("PyYAML", "packaging", "sqlalchemy")),
    "cut-cross-entropy": Package("25.1.1", "cut_cross_entropy"),
    "sageattention": Package("1.0.6", "sageattention"),
    "gemlite": Package("0.6.0.post2", "gemlite", ("tqdm", "numpy")),
    "quack-kernels": Package("0.6.5", "quack", ("nvidia-cutlass-dsl", "einops")),
}


@dataclass(frozen=True)
class Op:
    """One operation: `file` is theirs, `call` calls what stands in it.

    `inputs` are expressions by argument, `declared` what a user has to write into the case besides.
    """

    package: str
    name: str
    file: str
    call: str
    plain: str
    inputs: dict[str, str]
    backward: bool = True
    declared: str = ""


X = {"x": "T(R, C)"}
XY = {"x": "T(R, C)", "y": "T(R, C)"}
XW = {"x": "T(R, C)", "w": "T(C)"}
XWB = {**XW, "b": "T(C)"}
_RMS = "x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w"
_NORM = "F.layer_norm(x, x.shape[-1:], w, b, 1e-6)"
_P = {"x": "P(R, C)", "y": "P(R, C).detach()"}
_GEMS_UNARY = {
    **{name: f"torch.{name}(x)" for name in ("abs", "exp", "cos", "sin", "tanh", "sigmoid")},
    **{name: f"F.{name}(x)" for name in ("relu", "silu", "gelu", "softplus")},
    "square": "x.square()",
}


def _liger(
    name: str, function: str, arguments: str, plain: str, inputs: dict[str, str], declared: str = ""
) -> Op:
    call = f"Liger{function}Function.apply({arguments})"
    # It returns the z-loss, the accuracy and the predictions as well.
    call += "[0]" if name == "cross_entropy" else ""
    return Op(
        "liger-kernel", name, f"liger_kernel/ops/{name}.py", call, plain, inputs, True, declared
    )


def _fla(
    name: str, file: str, call: str, plain: str, inputs: dict[str, str], declared: str = ""
) -> Op:
    path = f"fla/modules/{file}.py"
    return Op("fla-core", name, path, call, plain, inputs, declared=declared)


def _gems(name: str, call: str, plain: str, inputs: dict[str, str] = X, file: str = "") -> Op:
    path = f"flag_gems/ops/{file or name}.py"
    return Op("flag-gems", name, path, call, plain, inputs, backward=False)


OPS = [
    _liger("softmax", "Softmax", "x", "x.softmax(-1)", X),
    # In bfloat16 torch's own gradient misses the gate: what is in the support is decided by a bit.
    _liger(
        "sparsemax", "Sparsemax", "x, -1", "plain_sparsemax(x)", {"x": "T(R, C, d=torch.float32)"}
    ),
    _liger("rms_norm", "RMSNorm", "x, w, 1e-6, 0.0, 'gemma', False", _RMS, XW),
    _liger("layer_norm", "LayerNorm", "x, w, b, 1e-6", _NORM, XWB),
    _liger("swiglu", "SiLUMul", "x, y", "F.silu(x) * y", XY, "consumes=(0, 1)"),
    _liger("geglu", "GELUMul", "x, y", "F.gelu(x, approximate='tanh') * y", XY, "consumes=(0, 1)"),
    _liger(
        "dyt",
        "DyT",
        "x, a, w, b",
        "torch.tanh(a * x) * w + b",
        {"x": "T(R, C)", "a": "T(1)", "w": "T(C)", "b": "T(C)"},
    ),
    _liger(
        "poly_norm",
        "PolyNorm",
        "x, w, b, 1e-6, False",
        "plain_poly_norm(x, w, b)",
        {
            "x": "T(R, C)",
            "w": "T(3)",
            "b": "torch.randn((), device=DEVICE, dtype=DTYPE).requires_grad_()",
        },
    ),
    _liger("relu_squared", "ReLUSquared", "x", "F.relu(x).square()", X),
    _liger(
        "kl_div",
        "KLDivLoss",
        "x.log(), y",
        # Theirs returns float32 for narrower inputs.
        "F.kl_div(x.log(), y, reduction='none').float().sum() / x.shape[0]",
        _P,
        # Torch's code computes in bfloat16 and returns float32: 70 dB.
        "domain='moderate values', gate={'out': snr(60.0)}",
    ),
    _liger(
        "tvd",
        "TVDLoss",
        "x, y",
        "(x.float() - y.float()).abs().sum() / 2 / x.shape[0]",
        _P,
        # Theirs sums in bfloat16 and reaches 69 dB, torch in float32 is exact.
        "gate={'out': snr(60.0)}",
    ),
    _liger("jsd", "JSD", "x.log(), y.log()", "plain_jsd(x, y)", _P),
    _liger(
        "cross_entropy",
        "CrossEntropy",
        "x, t, None",
        "F.cross_entropy(x, t)",
        {"x": "T(R, C)", "t": "torch.randint(C, (R,), device=DEVICE)"},
        "consumes=(0,)",
    ),
    _liger(
        "group_norm",
        "GroupNorm",
        "x, w, b, 8, 4, 1e-6",
        "F.group_norm(x, 4, w, b, 1e-6)",
        {"x": "T(R // 8, 8, C)", "w": "T(8)", "b": "T(8)"},
    ),
    _liger(
        "fused_add_rms_norm",
        "FusedAddRMSNorm",
        "x, y, w, 1e-6, 0.0, 'gemma'",
        "(lambda s: (s * torch.rsqrt(s.square().mean(-1, keepdim=True) + 1e-6) * w, s))(x + y)",
        {**XY, "w": "T(C)"},
    ),
    _liger(
        "rope",
        "Rope",
        "q, k, c, s",
        "plain_rope(q, k, c, s)",
        {
            "q": "T(2, 4, R, 64)",
            "k": "T(2, 2, R, 64)",
            "c": "T(1, R, 32, g=False).repeat(1, 1, 2)",
            "s": "T(1, R, 32, g=False).repeat(1, 1, 2)",
        },
        # For one row of two batches theirs is wrong.
        "domain='declared shapes, equal sizes'",
    ),
    _fla("fla_layer_norm", "norm/layernorm", "layer_norm(x, w, b, eps=1e-6)", _NORM, XWB),
    _fla("fla_rms_norm", "norm/layernorm", "rms_norm(x, w, None, eps=1e-6)", _RMS, XW),
    _fla(
        "fla_l2norm",
        "norm/l2norm",
        "l2norm(x)",
        "x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)",
        X,
    ),
    _fla(
        "fla_rms_norm_gated",
        "norm/fused_norm_gate",
        "rms_norm_gated(x, y, w, None, eps=1e-6)",
        f"({_RMS}) * F.silu(y)",
        {**XY, "w": "T(C)"},
    ),
    _fla("fla_sigmoid", "activations/ops", "sigmoid(x)", "x.sigmoid()", X),
    _fla("fla_swish", "activations/ops", "swish(x)", "F.silu(x)", X),
    _fla("fla_logsigmoid", "activations/ops", "logsigmoid(x)", "F.logsigmoid(x)", X),
    _fla("fla_elu_p1", "activations/ops", "elu_p1(x)", "F.elu(x) + 1", X),
    _fla("fla_sqrelu", "activations/ops", "sqrelu(x)", "F.relu(x).square()", X),
    _fla("fla_swiglu", "activations/ops", "swiglu(x, y)", "F.silu(x) * y", XY),
    _fla("fla_sigmoidglu", "activations/ops", "sigmoidglu(x, y)", "x.sigmoid() * y", XY),
    _fla(
        "fla_token_shift",
        "token_shift",
        "token_shift(x)",
        "F.pad(x, (0, 0, 1, -1)) - x",
        {"x": "T(2, R, C)"},
    ),
    *[_gems(name, f"{name}(x)", plain) for name, plain in _GEMS_UNARY.items()],
    _gems("add", "add(x, y)", "x + y", XY),
    _gems("mul", "mul(x, y)", "x * y", XY),
    _gems("maximum", "maximum(x, y)", "torch.maximum(x, y)", XY),
    _gems("hypot", "hypot(x, y)", "torch.hypot(x, y)", XY),
    _gems("logaddexp", "logaddexp(x, y)", "torch.logaddexp(x, y)", XY),
    _gems("gems_softmax", "softmax(x, -1)", "x.softmax(-1)", file="softmax"),
    _gems("log_softmax", "log_softmax(x, -1)", "x.log_softmax(-1)"),
    _gems("amax", "amax(x, [-1])", "x.amax(-1)"),
    _gems("argmax", "argmax(x, -1)", "x.argmax(-1)"),
    _gems("gems_sum", "sum_dim(x, [-1])", "x.sum(-1)", file="sum"),
    _gems("gems_mean", "mean_dim(x, [-1])", "x.mean(-1)", file="mean"),
    _gems("vector_norm", "vector_norm(x, 2, [-1])", "x.norm(dim=-1)"),
    _gems("triu", "triu(x)", "x.triu()"),
    _gems("flip", "flip(x, [0])", "x.flip(0)"),
    _gems("cat", "cat([x, y])", "torch.cat([x, y])", XY),
    # Of equal values, which bfloat16 has many of, any may be the k-th.
    _gems("topk", "topk(x, 8)", "torch.topk(x, 8)", {"x": "T(R, C, d=torch.float32)"}),
    _gems("mm", "mm(x, y)", "x @ y", {"x": "T(R, C)", "y": "T(C, R)"}),
    _gems("bmm", "bmm(x, y)", "x @ y", {"x": "T(4, 64, C)", "y": "T(4, C, 64)"}),
    _gems("mse_loss", "mse_loss(x, y)", "F.mse_loss(x, y)", XY),
    _gems(
        "embedding",
        "embedding(w, i)",
        "w[i]",
        {"w": "T(R, C)", "i": "torch.randint(R, (R,), device=DEVICE)"},
    ),
    _gems("cumsum", "cumsum(x, -1)", "x.cumsum(-1)"),
    Op(
        "cut-cross-entropy",
        "linear_cross_entropy",
        "cut_cross_entropy/linear_cross_entropy.py",
        "linear_cross_entropy(x, w, t)",
        "F.cross_entropy(x @ w.T, t)",
        {"x": "T(R, 256)", "w": "T(C, 256)", "t": "torch.randint(C, (R,), device=DEVICE)"},
    ),
    Op(
        "sageattention",
        "sage_attention",
        "sageattention/core.py",
        "sageattn(q, k, v)",
        "F.scaled_dot_product_attention(q, k, v)",
        dict.fromkeys("qkv", "T(2, 4, R, 64, g=False, d=torch.float16)"),
        False,
        "consumes=(1,), gate=snr(20.0)",
    ),
    Op(
        "sageattention",
        "int8_blocks",
        "sageattention/quant_per_block.py",
        "per_block_int8(q, k)[0]",
        "int8_blocks(q)",
        dict.fromkeys("qk", "T(2, 4, R, 64, g=False, d=torch.float16)"),
        False,
        "gate={'out': snr(60.0)}",
    ),
    Op(
        "quack-kernels",
        "quack_softmax",
        "quack/softmax.py",
        "softmax(x)",
        "x.softmax(-1)",
        X,
    ),
    Op("quack-kernels", "quack_rmsnorm", "quack/rmsnorm.py", "rmsnorm(x, w)", _RMS, XW),
    Op(
        "quack-kernels",
        "quack_cross_entropy",
        "quack/cross_entropy.py",
        "cross_entropy(x, t, reduction='none')",
        "F.cross_entropy(x, t, reduction='none')",
        {"x": "T(R, C)", "t": "torch.randint(C, (R,), device=DEVICE)"},
    ),
    Op(
        "gemlite",
        "quantized_linear",
        "gemlite/core.py",
        "packed(w).forward(x)",
        "x @ w.T",
        {"x": "T(R, C, g=False)", "w": "T(C, C, g=False)"},
        False,
        "weights=(1,), gate=snr(20.0)",
    ),
]

#: What some plain expressions are made of, and what packs a gemlite layer; and what makes
#: wrong results of right ones.
HELPERS = """
import torch
import torch.nn.functional as F


def plain_jsd(x, y):
    m = (x + y) / 2
    kl = lambda p: (p * (p.log() - m.log())).sum(-1).mean()
    return (kl(x) + kl(y)) / 2


def plain_poly_norm(x, w, b):
    norm = lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
    return w[0] * norm(x**3) + w[1] * norm(x**2) + w[2] * norm(x) + b


def changed(op, how, *arguments):
    result = op(*arguments)
    results = result if isinstance(result, tuple) else (result,)
    results = tuple(WRONG[how](x) if x.is_floating_point() else x for x in results)
    return results if isinstance(result, tuple) else results[0]


def in_less(x):
    return x.to(torch.bfloat16 if x.dtype is torch.float32 else torch.float8_e5m2).to(x.dtype)


WRONG = {"zeros": lambda x: x * 0, "sign": lambda x: -x, "less": in_less}


def plain_sparsemax(x):
    z = x.sort(-1, descending=True).values
    k = torch.arange(1, x.shape[-1] + 1, device=x.device, dtype=x.dtype)
    total = z.cumsum(-1)
    support = (1 + k * z > total).sum(-1, keepdim=True)
    tau = (total.gather(-1, support - 1) - 1) / support
    return (x - tau).clamp(min=0)


def rotate(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


def plain_rope(q, k, c, s):
    return q * c[:, None] + rotate(q) * s[:, None], k * c[:, None] + rotate(k) * s[:, None]


def int8_blocks(q, block=128):
    rows = []
    for part in q.float().split(block, -2):
        part = part * (part.shape[-1] ** -0.5 * 1.44269504)
        scale = part.abs().amax((-2, -1), keepdim=True) / 127
        x = part / scale
        rows.append((x + 0.5 * torch.where(x >= 0, 1.0, -1.0)).to(torch.int8))
    return torch.cat(rows, -2)


def packed(w, layers={}):
    from gemlite.helper import A16W8
    key = w.data_ptr(), w._version
    if key not in layers:
        linear = torch.nn.Linear(w.shape[1], w.shape[0], bias=False, device=w.device, dtype=w.dtype)
        linear.weight.data = w
        layers[key] = A16W8(device=w.device).from_linear(linear)
    return layers[key]
"""
