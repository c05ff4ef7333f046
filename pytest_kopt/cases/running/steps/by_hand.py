"""Whether torch computes a result that was to be written in another language, found by a replay.

torch's operators are recorded while the kernel runs and run again by themselves, on the same inputs
and in memory full of NaN. Where that gives the result, what was written by hand did nothing for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from pytest_kopt.cases.running.against_reference import judge
from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.cases.running.execution import Pass, make_inputs, results_of
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.poisoned_memory import poisoned_allocations
from pytest_kopt.honesty.work import Operator, operators_of
from pytest_kopt.numerics.determinism import bits
from pytest_kopt.numerics.nested import fresh_copies

#: Namespaces of operators that come with torch; others are registered by whoever wrote the kernel.
_TORCHS = ("aten", "prims", "prim", "mkldnn", "quantized", "mkl", "xnnpack")


def by_hand(checking: Checking) -> Iterator[Finding]:
    """Replay torch's operators of a call by themselves, and judge what they give."""
    case, call = checking.case, checking.case.positional(checking.case.function)
    earlier, inputs = (list(make_inputs(case, seed)) for seed in (checking.seeds["last"], 1))
    with suppress(RuntimeError, NotImplementedError):
        computed = _computed_by_torch(lambda items: call(*items), earlier, fresh_copies(inputs))
        if computed is None:
            return
        returned, after, operators = computed
        outputs = results_of(case, returned, after)
        expected = checking.truth.forward(fresh_copies(inputs), list(outputs))
        judged = judge(replace(case, backward=False), expected, Pass(outputs, {}))
        if not all(comparison.passed for comparison in judged):
            return
        checking.facts.by_torch = operators
        bench = checking.bench
        # What the baseline left to torch, and is left to it alike, is nobody's doing.
        if not bench.freezes and operators != bench.frozen(case.nodeid).by_torch:
            language = bench.language
            yield Finding(
                "vendor-operator",
                f"torch's operators alone give the result: the code in {language} contributes "
                "nothing",
                advice=f"write it in {language}, or start a campaign whose target_lang is TORCH",
            )


def _computed_by_torch(
    call: Callable[[Sequence[Any]], Any], earlier: Sequence[Any], inputs: Sequence[Any]
) -> tuple[Any, list[Any], str] | None:
    """Return the result of torch's operators alone on `inputs`, the inputs after it, and a digest.

    The call is run twice, first on `earlier` inputs: a tensor from outside whose content changes
    from one to the other is memory that the kernel writes to, and NaN in the replay. None where a
    result comes from somewhere else.
    """
    _, operators = operators_of(lambda: call(earlier))
    foreign = _foreign(operators, earlier)
    before = [bits(tensor).clone() for tensor in foreign]
    fresh = tree_map_only(torch.Tensor, torch.Tensor.clone, list(inputs))
    returned, operators = operators_of(lambda: call(inputs))
    pairs = zip(tree_leaves(inputs), tree_leaves(fresh), strict=True)
    stand_ins = {id(leaf): copy for leaf, copy in pairs}
    for tensor, content in zip(foreign, before, strict=True):
        same = bool((bits(tensor) == content).all())
        stand_ins[id(tensor)] = tensor.clone() if same else _spoiled(tensor)
    with torch.no_grad(), poisoned_allocations():
        for operator in operators:
            _replay(operator, stand_ins)
    if not all(id(tensor) in stand_ins for tensor in _tensors(returned)):
        return None
    names = " ".join(str(operator.function) for operator in operators)
    digest = hashlib.sha256(names.encode()).hexdigest()[:16]
    return tree_map(lambda leaf: stand_ins.get(id(leaf), leaf), returned), fresh, digest


def _foreign(operators: Sequence[Operator], arguments: Sequence[Any]) -> list[torch.Tensor]:
    """Return the tensors that operators take and that neither they nor the arguments made."""
    produced = {id(leaf) for leaf in tree_leaves(arguments)}
    foreign = {}
    for operator in operators:
        for tensor in _tensors((operator.args, operator.kwargs)):
            if id(tensor) not in produced:
                foreign[id(tensor)] = tensor
        produced |= {id(leaf) for leaf in tree_leaves(operator.result)}
    return list(foreign.values())


def _replay(operator: Operator, stand_ins: dict[int, torch.Tensor]) -> None:
    """Run an operator on what stands for its tensors; note what stands for its results."""
    if operator.function.namespace in _TORCHS:
        arguments = operator.args, operator.kwargs
        args, kwargs = tree_map_only(
            torch.Tensor, lambda tensor: stand_ins.get(id(tensor), _spoiled(tensor)), arguments
        )
        result = operator.function(*args, **kwargs)
    else:
        result = tree_map_only(torch.Tensor, _spoiled, operator.result)
    pairs = zip(tree_leaves(operator.result), tree_leaves(result), strict=True)
    stand_ins.update({id(old): new for old, new in pairs if isinstance(old, torch.Tensor)})


def _spoiled(tensor: torch.Tensor) -> torch.Tensor:
    filling = float("nan") if tensor.is_floating_point() or tensor.is_complex() else 0
    return torch.full_like(tensor, filling)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]
