"""torch.compile in cases: none depends on the others of its session, and none starts a pool."""

from __future__ import annotations

import pytest

from .project import Project

CASES = """\
import pytest
import torch
import torch._inductor.config


@torch.compile(dynamic=False, fullgraph=True, backend="eager")
def doubled(x):
    return x + x


def inputs(columns):
    # One version of a function in a process, of eight that there may be.
    torch._dynamo.config.recompile_limit = 1
    assert torch._inductor.config.compile_threads == 1
    return (torch.randn(8, columns),)


@pytest.mark.kopt(schema="single")
@pytest.mark.parametrize("columns", [16, 32])
def test_doubled(kopt, columns):
    kopt(
        doubled,
        inputs=lambda: inputs(columns),
        reference=lambda x: 2 * x.double(),
        dims={"columns": columns},
    )
"""


@pytest.mark.long
def test_a_shape_beyond_the_limit_of_a_function_is_as_the_first(
    empty: Project, mode: tuple[str, ...]
) -> None:
    """torch.compile makes a few versions of one function, and then fails or runs it eagerly.

    Its pool of compilers would import torch for seconds, beside kernels that are timed.
    """
    empty.write("tests/test_doubled.py", CASES)
    run = empty.pytest("--kopt-check-only", "tests", *mode, TORCHINDUCTOR_COMPILE_THREADS="8")
    assert run.code == 0, run.text
