"""See on a GPU which edits are told to launch the same, and what is said of the others.

python benchmarks/same_machine_code.py [RESULT.json]

Each row edits a small module in one way. Prints what was expected and what was told, with the
figures of the first kernel that differs; ends with status 1 where one is not as expected, or where
registers are not those that cuobjdump tells. Takes about a minute.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from pytest_kopt.sameness.launch_recording import Recording, differences
from pytest_kopt.sameness.launches import architecture, record
from pytest_kopt.sameness.objects import figures, tool_path

SOURCE = """\
import torch
import triton
import triton.language as tl


@triton.jit
def scaled(x, y, n, m, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in tl.range(0, m, num_stages=2):
        total += tl.load(x + offsets + step * n, mask=mask, other=0.0).to(tl.float32)
    tl.store(y + offsets, total, mask=mask)


@triton.jit
def product(a, b, c, K, B: tl.constexpr):
    i = tl.arange(0, B)
    total = tl.zeros((B, B), dtype=tl.float32)
    for k in tl.range(0, K, B):
        left = tl.load(a + i[:, None] * K + k + i[None, :])
        total += tl.dot(left, tl.load(b + (k + i[:, None]) * B + i[None, :]))
    tl.store(c + i[:, None] * B + i[None, :], total)


def launch(x, a, b):
    y = torch.empty(x.shape[1], device=x.device)
    n = y.numel()
    scaled[(triton.cdiv(n, 1024),)](x, y, n, x.shape[0], BLOCK=1024, num_warps=4)
    c = torch.empty(64, 64, device=x.device)
    product[(1,)](a, b, c, a.shape[1], B=64, num_warps=4, num_stages=3)
    return y, c


def call(x, a, b):
    y, c = launch(x, a, b)
    return torch.relu(y), c @ c
"""
REFACTORED = """\
def call(x, a, b):
    results = launch(x, a, b)
    first, second = results[0], results[1]
    return first.relu(), torch.matmul(second, second)
"""
CASES: dict[str, tuple[str, str, bool]] = {
    "nothing": ("", "", True),
    "a comment in a kernel": (
        "    mask = offsets < n\n",
        "    # Inside?\n    mask = offsets < n\n",
        True,
    ),
    "host code refactored": (SOURCE[SOURCE.index("def call") :], REFACTORED, True),
    "num_warps": ("BLOCK=1024, num_warps=4", "BLOCK=1024, num_warps=8", False),
    "num_stages": ("num_warps=4, num_stages=3", "num_warps=4, num_stages=4", False),
    "a changed mask": ("offsets < n\n", "offsets <= n - 1 - n % 2\n", False),
    "wider blocks": (
        "cdiv(n, 1024),)](x, y, n, x.shape[0], BLOCK=1024",
        "cdiv(n, 4096),)](x, y, n, x.shape[0], BLOCK=4096",
        False,
    ),
    "another scalar": ("x.shape[0], BLOCK", "x.shape[0] - 1, BLOCK", False),
    "an added launch": ("    c = torch.empty(64", "    y += 1.0\n    c = torch.empty(64", False),
    "a launch less": ("torch.relu(y)", "y", False),
    "another torch op": ("torch.relu(y)", "torch.sigmoid(y)", False),
    "another product": ("c @ c", "c.half() @ c.half()", False),
}


def version(folder: Path, name: str, source: str) -> Callable[..., object]:
    path = folder / f"v{len(list(folder.iterdir()))}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made: Callable[..., object] = module.call
    return made


def recorded(call: Callable[..., object], given: tuple[torch.Tensor, ...]) -> Recording:
    call(*given)
    torch.cuda.synchronize()
    return record(lambda: call(*given))


def checked(found: Recording) -> list[str]:
    """Return where the figures of a recording's objects are not those of cuobjdump."""
    tool, wrong = tool_path("cuobjdump"), []
    for content in found.objects.values():
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(content)
            file.flush()
            told = subprocess.check_output([str(tool), "-res-usage", file.name], text=True)
        usage = re.search(r"REG:(\d+) STACK:(\d+)", told)
        known = figures(content, 128, 0, architecture())
        if usage is None or (known["registers"], known["stack"]) != (int(usage[1]), int(usage[2])):
            wrong.append(f"{known} is not {told}")
    driver = {launch.code: launch.needs.get("registers") for launch in found.launches}
    for code, content in () if found.unread else found.objects.items():
        if driver.get(code) != figures(content, 128, 0, architecture())["registers"]:
            wrong.append(f"the driver says {driver.get(code)} registers")
    return wrong


def main() -> int:
    if not torch.cuda.is_available():
        print("no GPU here")
        return 3
    x = torch.randn(16, 65536, device="cuda", dtype=torch.bfloat16)
    a, b = (
        torch.randn(shape, device="cuda", dtype=torch.float16) for shape in ((64, 512), (512, 64))
    )
    given, rows, result = (x, a, b), [], []
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        plain = recorded(version(folder, "plain", SOURCE), given)
        print(f"{len(plain.launches)} launches, {plain.unread or 'all of them read'}")
        wrong = checked(plain)
        for name, (old, new, expected) in CASES.items():
            assert old in SOURCE, name
            call = version(folder, name, SOURCE.replace(old, new, 1))
            begun = time.perf_counter()
            found = recorded(call, given)
            same = plain.is_same(found)
            changes: list[Any] = [] if same else differences(plain, found, architecture())
            spent = time.perf_counter() - begun
            wrong += checked(found)
            wrong += [name] if same != expected else []
            told = "; ".join(
                f"{c.kernel}: "
                + ", ".join(
                    f"{n} {c.before.get(n, 0):g}->{c.after.get(n, 0):g}"
                    for n in {**c.before, **c.after}
                    if c.before.get(n) != c.after.get(n)
                )
                for c in changes
            )
            rows.append([name, expected, same, f"{spent:.2f}", told[:150]])
            if same != expected:
                for one, other in zip(plain.launches, found.launches, strict=False):
                    if not one.is_same(other):
                        print(f"{name}:\n  {one}\n  {other}")
            result.append(
                {"edit": name, "expected": expected, "same": same, "told": told, "s": spent}
                | {"unread": found.unread}
            )
    print(tabulate(rows, headers=["edit", "same?", "told", "s", "what changed"]))
    for text in wrong:
        print(f"WRONG: {text}")
    if len(sys.argv) > 1:
        document = {"device": torch.cuda.get_device_name(), "rows": result, "wrong": wrong}
        Path(sys.argv[1]).write_text(json.dumps(document, indent=1) + "\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
