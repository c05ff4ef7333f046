"""Says which versions of a campaign's kernel are right.

python check_kernels.py NAME [VERSION...]

A script of its own, since Triton's interpreter has to be chosen before Triton is imported.
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from run_campaign import Plan, edited, load

from pytest_kopt import snr
from pytest_kopt.numerics.compare import compare
from pytest_kopt.numerics.gates import Gate

#: What the campaigns leave to the output's dtype: bf16 gives about 47 dB.
DEFAULT = snr(40.0)


class Checking:
    """Stands in for the fixture: compares output and gradients with the reference."""

    device = "cpu"

    def __init__(self) -> None:
        self.right = True

    def __call__(
        self,
        fn: Callable[..., torch.Tensor],
        *,
        inputs: Callable[[], Sequence[torch.Tensor]],
        reference: Callable[..., torch.Tensor],
        gate: Gate | None = None,
        **_: Any,
    ) -> None:
        given = inputs()
        known = [x.detach().clone().requires_grad_(x.requires_grad) for x in given]
        out, wanted = fn(*given), reference(*known)
        incoming = torch.randn(out.shape).to(out.dtype)
        out.backward(incoming)
        wanted.backward(incoming.double())
        pairs = [(wanted, out), *((b.grad, a.grad) for a, b in zip(given, known, strict=True))]
        for expected, found in pairs:
            if expected is not None:
                assert found is not None
                self.right &= compare(expected.detach(), found.detach(), gate or DEFAULT).passed


def versions(plan: Plan) -> Iterator[tuple[str, str]]:
    source = plan.source()
    yield "baseline", source
    for step in plan.steps:
        for place, edits in enumerate(step.attempts):
            source = edited(source, edits)
            yield f"{step.name}:{place}", source


def module(name: str, path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def cases(plan: Plan) -> Iterator[Callable[[Checking], None]]:
    """Yield the calls of the campaign's test function, one a case."""
    tests = vars(module("cases", plan.directory / plan.settings["tests"]))
    test = next(value for name, value in tests.items() if name.startswith("test_"))
    mark = next(mark for mark in test.pytestmark if mark.name == "parametrize")
    for values in mark.args[1]:
        parameters: Mapping[str, Any] = dict(zip(mark.args[0], values, strict=True))
        yield functools.partial(test, **parameters)


def main() -> None:
    plan, wanted = load(sys.argv[1]), sys.argv[2:]
    sys.modules["kernels"] = types.ModuleType("kernels")
    with tempfile.TemporaryDirectory() as directory:
        for number, (version, source) in zip(itertools.count(), versions(plan), strict=False):
            if wanted and version not in wanted:
                continue
            # Triton reads a kernel's source from its file: one that is written again is another.
            path = Path(directory) / f"version_{number}.py"
            path.write_text(source)
            module(plan.kernel.removesuffix(".py").replace("/", "."), path)
            torch.manual_seed(0)
            checking = Checking()
            for case in cases(plan):
                case(checking)
            print(version, "right" if checking.right else "wrong", flush=True)


if __name__ == "__main__":
    main()
