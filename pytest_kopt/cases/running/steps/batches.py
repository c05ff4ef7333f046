"""Calls on parts of a batch: a row's result has equal bits, whatever rows come with it.

Dimension 0 of the first tensor input that is no weight is the batch. Every tensor input that is no
weight and has this size there carries it, and so does every result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.cases.running.execution import CandidateFunction
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.determinism import differing_rows
from pytest_kopt.numerics.nested import fresh_copies, mapped, tensors

_Cut = Callable[[torch.Tensor], torch.Tensor]


def parts_of_a_batch(checking: Checking) -> Iterator[Finding]:
    """Compare rows of parts with those of the whole, bit by bit; BadInput without a batch."""
    case, inputs, seed = checking.case, checking.pristine, checking.seeds["last"]
    carriers = [place for place in range(len(inputs)) if place not in case.weights]
    sizes = [len(x) for place in carriers for x in tensors(inputs[place]) if x.ndim]
    if not sizes:
        raise case.refusal(
            "batch_invariant=True, and every tensor of inputs() is a weight",
            "a tensor among the inputs that is no weight: its dimension 0 is the batch",
        )
    rows = sizes[0]
    call = CandidateFunction(replace(case, backward=False), case.function)

    def results(cut: _Cut) -> dict[str, torch.Tensor]:
        def part(leaf: Any) -> Any:
            is_carrier = isinstance(leaf, torch.Tensor) and leaf.ndim and len(leaf) == rows
            return cut(leaf.detach()) if is_carrier else leaf

        arguments = [mapped(x, part) if place in carriers else x for place, x in enumerate(inputs)]
        outputs = call(fresh_copies(arguments), seed).copies.outputs
        return {name: out for name, out in outputs.items() if isinstance(out, torch.Tensor)}

    whole = {
        name: out for name, out in results(torch.clone).items() if out.ndim and len(out) == rows
    }
    if not whole:
        raise case.refusal(
            f"batch_invariant=True, and no result has the batch of {rows} rows in dimension 0",
            "results with a row for each row of the batch",
        )
    for text, cut in _cuts(rows):
        try:
            of_part = results(cut)
        except Exception as error:
            problem = f"raises {type(error).__name__} for {text}"
        else:
            differing = {name: _rows_unlike(cut(out), of_part[name]) for name, out in whole.items()}
            name = max(differing, key=lambda name: differing[name])
            if not differing[name]:
                continue
            problem = f"{name} has other bits in {differing[name]} rows for {text}"
        at_first = "; no round can ask for more than the baseline holds" * checking.bench.freezes
        yield Finding(
            "batch-variant",
            f"not batch-invariant: {problem}, of a batch of {rows}{at_first}",
            where=case.label,
            advice="let no choice that changes the order of additions depend on the number of rows",
            rejects=False,
        )
        return


def _cuts(rows: int) -> Iterator[tuple[str, _Cut]]:
    """Yield what is called, and what cuts it out of a tensor of the whole batch."""
    if rows > 1:
        yield f"the first {rows // 2}", lambda x: x[: rows // 2]
    for row in sorted({0, rows // 2, rows - 1}):
        yield f"row {row} alone", partial(torch.narrow, dim=0, start=row, length=1)
    yield "the rows in another place", lambda x: torch.empty_like(x).copy_(x.roll(1 + rows // 3, 0))


def _rows_unlike(expected: torch.Tensor, out: torch.Tensor) -> int:
    if out.shape != expected.shape or out.dtype != expected.dtype:
        return len(expected)
    return len(differing_rows(out.contiguous(), expected.contiguous()))
