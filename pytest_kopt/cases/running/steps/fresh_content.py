"""The first call, on new content in poisoned memory, and the replay of torch's operators alone.

The replay runs the recorded operators on the same inputs, in memory full of NaN. If it gives the
result, the code in the campaign's language did nothing for it.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from pytest_kopt.cases.order import drawn_so_far
from pytest_kopt.cases.running.against_reference import judge, nearest, touched_rows
from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.cases.running.execution import (
    INPUT,
    Pass,
    Run,
    make_inputs,
    results_of,
    watch_interpreter,
)
from pytest_kopt.honesty import outputs, renewal, work
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.honesty.inputs import leaves
from pytest_kopt.honesty.outputs import accuracy_of, least_exact
from pytest_kopt.honesty.renewal import poisoned_allocations
from pytest_kopt.honesty.work import Operator, operators_of
from pytest_kopt.numerics.gates import Gate
from pytest_kopt.numerics.nested import bits, fresh_copies, storages, tensors

#: What a gate says of a kernel that is named after a format.
_FORMATS = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "fp4": "float4_e2m1fn_x2"}
#: Said of a wrong result only: what a kernel draws to round or to tune need not show in it.
_DRAWS = Finding(
    "global-generator",
    "the call draws from torch's global generator, so the reference cannot draw the same numbers",
    advice=(
        "have inputs() return a torch.Generator or a seed, from which kernel and "
        "reference draw; kopt restores it before every call"
    ),
)
#: Namespaces of operators that come with torch; others are registered by whoever wrote the kernel.
_TORCHS = ("aten", "prims", "prim", "mkldnn", "quantized", "mkl", "xnnpack")


def fresh_content(checking: Checking) -> Iterator[Finding]:
    """Call the candidate before the reference, on copies of its own, in poisoned memory."""
    seed = checking.seeds["check"]
    # Copies, as all that follows: they are laid out alike.
    checking.pristine = fresh_copies(make_inputs(checking.case, seed))
    _refuse_gradients_of_nothing(checking)
    checking.used = fresh_copies(checking.pristine)
    renewal.poison_freed(tensors(checking.pristine))
    start = time.perf_counter()
    drawn = drawn_so_far(checking.bench.device)
    with watch_interpreter() as watch:
        run = checking.candidate(checking.used, seed)
    checking.seconds = time.perf_counter() - start
    # Before anything asks for the address of a lazy copy's memory, and so makes the copy.
    layouts = outputs.layouts(run.live.outputs, checking.used, checking.case.consumes)
    checking.interpreted = watch.seen
    checking.draws = drawn_so_far(checking.bench.device) != drawn
    with checking.no_call():
        checking.settle_gates(run.live)
        expected = checking.expect(run, seed)
        checking.judge(run, expected, "")
    checking.first, expected = checking.pristine, checking.expected
    if checking.elsewhere(run):
        # A mistake, and no more than that.
        return
    if expected.outputs.keys() == run.copies.outputs.keys():
        _refuse_gates_of_nothing(checking)
    odd = outputs.odd_findings(
        list(run.live.outputs.values()), list(expected.outputs.values()), checking.pristine
    )
    yield from odd
    if checking.passed and not odd:
        _measure(checking, run, expected, layouts)
        return
    if checking.draws:
        yield _DRAWS
    yield from _unwritten(checking, seed)


def _refuse_gates_of_nothing(checking: Checking) -> None:
    """Refuse a gate for a result that the whole of a call does not have; parts of it have less."""
    gate, names = checking.case.gate, [comparison.name for comparison in checking.comparisons]
    if isinstance(gate, Mapping) and (unknown := gate.keys() - {*names}):
        raise checking.case.refusal(
            f"gate has {min(unknown)!r}, and no output has this name", names
        )


def _refuse_gradients_of_nothing(checking: Checking) -> None:
    case = checking.case
    if not case.backward:
        return
    if not leaves(checking.pristine):
        raise case.refusal(
            "backward=True, but no input requires grad",
            fix="have inputs() return tensors with requires_grad=True",
        )
    inside = [x for x in checking.pristine if not isinstance(x, torch.Tensor)]
    if any(tensor.requires_grad for tensor in tensors(inside)):
        raise case.refusal(
            "backward=True, but a tensor inside a list, dict or dataclass requires grad",
            fix="pass every tensor that needs a gradient as an argument of its own",
        )


def _measure(
    checking: Checking, run: Run, expected: Pass, layouts: Mapping[str, str | None]
) -> None:
    """Keep how exact a right result is and how it lies, and what the call has to read and write."""
    case, pristine = checking.case, checking.pristine
    computed_in = least_exact(list(expected.outputs.values()))
    for name, ref, out in nearest(expected, run.copies, checking.in_float64):
        checking.accuracy[name] = accuracy_of(ref, out, computed_in, layouts.get(name))
    # Of what is written in place, what changed; it may be far less than what is there.
    new_outputs, changes = _written(checking, run, expected)
    checking.written = work.written_bytes(new_outputs) + changes
    checking.io_bytes = io_bytes(pristine, new_outputs, run.live.gradients.values(), changes)
    checking.dtype = computing_dtype(pristine, case.gate_of(next(iter(expected.outputs))))


def _written(checking: Checking, run: Run, expected: Pass) -> tuple[list[torch.Tensor], int]:
    """Return the outputs in memory of their own, and the bytes written in place."""
    places = storages([checking.used[place] for place in checking.case.rewritten])
    new_outputs = [
        out
        for out in tensors(list(run.live.outputs.values()))
        if out.untyped_storage().data_ptr() not in places
    ]
    changes = 0
    for name, out in run.copies.outputs.items():
        if name.startswith(INPUT) and storages(run.live.outputs[name]) & places:
            before = expected.before.get(name)
            if before is None:
                changes += out.nbytes
            else:
                rows = touched_rows(before, out)
                differs = bits(out[rows]) != bits(before[rows])
                changes += int(differs.sum()) * out.element_size()
    return new_outputs, changes


def io_bytes(
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    gradients: Iterable[torch.Tensor | None],
    written: int = 0,
) -> dict[str, int]:
    """Return the bytes that a forward moves, and a backward where there are gradients.

    Forward: inputs read, outputs written. Backward: inputs and incoming gradients (of the outputs'
    size) read, gradients written. The `written` bytes of in-place writes count as well: nobody can
    tell whether they were read before.
    """
    moved = written + sum(work.written_bytes(tensors(list(x))) for x in (inputs, outputs))
    gradient_bytes = work.written_bytes(gradient for gradient in gradients if gradient is not None)
    return {"forward": moved} | ({"backward": moved + gradient_bytes} if gradient_bytes else {})


def computing_dtype(inputs: Sequence[Any], gate: Gate | None) -> str | None:
    """Return the dtype of products for the roofline: the gate's, else that of most input bytes.

    A single tensor of 8 bits next to a matrix of 16 is a weight that is widened: its product has
    the rate of 16 bits.
    """
    if named := _FORMATS.get(getattr(gate, "format", None) or ""):
        return named
    operands = [t for t in tensors(list(inputs)) if t.is_floating_point() or t.dtype is torch.int8]
    narrow = [t for t in operands if t.element_size() == 1]
    wide = [t for t in operands if t.element_size() == 2 and t.dim() > 1]
    sizes: dict[str, int] = {}
    for tensor in wide if len(narrow) == 1 and wide else operands:
        name = str(tensor.dtype).removeprefix("torch.")
        sizes[name] = sizes.get(name, 0) + tensor.numel() * tensor.element_size()
    return max(sizes, key=lambda name: sizes[name]) if sizes else None


def _unwritten(checking: Checking, seed: int) -> Iterator[Finding]:
    """Say of a wrong result whether some of it is what lay in memory before."""
    with renewal.poisoned_allocations():
        again = checking.candidate(fresh_copies(checking.pristine), seed)
    spoiled = [bool(torch.isnan(out).any()) for out in again.copies.results]
    before = [bool(torch.isnan(out).any()) for out in checking.last.copies.results]
    if any(spoiled) and not any(before):
        yield renewal.UNWRITTEN


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
        checking.by_torch = operators
        bench = checking.bench
        # What the baseline left to torch, and is left to it alike, is nobody's doing.
        if not bench.freezes and operators != bench.frozen(case.nodeid).by_torch:
            language = bench.language
            yield Finding(
                "vendor-operator",
                (
                    f"torch's operators alone compute the result: the code in {language} "
                    "contributes nothing"
                ),
                advice=(
                    f"write the kernel in {language}, or start a campaign whose target_lang "
                    "is TORCH"
                ),
            )


def _computed_by_torch(
    call: Callable[[Sequence[Any]], Any], earlier: Sequence[Any], inputs: Sequence[Any]
) -> tuple[Any, list[Any], str] | None:
    """Return the result of torch's operators alone on `inputs`, the inputs after it, and a digest.

    The call is run twice, first on `earlier` inputs. A tensor from outside whose content changes
    between the runs is memory that the kernel writes to, and NaN in the replay. None where a result
    comes from somewhere else.
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
