"""Asked of the baseline only: the FLOPs of its cases."""

from __future__ import annotations

from dataclasses import replace

from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.honesty.precision import most_terms
from pytest_kopt.numerics.nested import fresh_copies


def count_flops(checking: Checking) -> None:
    if checking.case.flops:
        like = checking.first[1].copies
        counted = checking.truth.flops(fresh_copies(checking.pristine), like)
        checking.counted_flops = counted
        terms = most_terms(checking.pristine, like.all, counted) if counted else None
        for name, reached in checking.accuracy.items():
            checking.accuracy[name] = replace(reached, terms=terms)
