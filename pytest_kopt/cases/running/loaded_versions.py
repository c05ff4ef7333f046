"""The versions of a case that a process loads side by side, in trees of their own if need be."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pytest_kopt.cases.case import Case
from pytest_kopt.cases.order import (
    INCUMBENT,
    ArmsOrder,
)
from pytest_kopt.cases.running.execution import make_inputs
from pytest_kopt.honesty.audit_hook import AuditHook
from pytest_kopt.honesty.inputs import RestoredArguments
from pytest_kopt.honesty.outputs import in_order
from pytest_kopt.numerics.nested import backward, fresh_copies, tensors
from pytest_kopt.versions import executed_files, twin
from pytest_kopt.versions.affected_modules import (
    NotLoadable,
    SameVersion,
    home,
    imported_by,
    project_modules,
    readers,
)

#: The arms' functions by name.
Versions = Mapping[str, Callable[..., Any]]


def load_versions(
    case: Case,
    order: ArmsOrder,
    seed: int,
    hook: AuditHook | None,
    first_call: Callable[[str, Callable[[], Any]], None],
    set_by_tests: Collection[str] = (),
) -> Versions:
    """Return the arms' functions.

    The first replica proves that each runs its own version's code and nothing else's.
    `first_call` makes an arm's first call in this process, given the arm's name. `set_by_tests` are
    attributes of the project's modules, as `module.name`, which hold for every version.
    """
    root = Path(order.tree or order.root)
    inputs = make_inputs(case, seed)
    call = one_call(case, case.function, inputs)
    # What a function imports or opens only when it is called has to be known before it is checked
    # and doubled.
    first_call(order.project_version if order.trees else next(iter(order.names), ""), call)
    # Other versions may open the same files from now on.
    opened = {path: {*by} for path, by in (hook.opened if hook else {}).items()}
    if order.tree:
        is_own = order.project_version in order.names
        executed_files.check_moved(
            call, Path(order.root), root, order.changed, opened, is_own=is_own
        )
    # It holds copies of the inputs, which need not lie beside those of the versions.
    del call
    if not order.trees:
        return dict.fromkeys(order.names, case.function)
    trees = [*map(Path, order.trees)]
    gone = [path for path in order.changed if not (root / path).exists()]
    if data := [path for path in gone if not path.endswith(".py")]:
        raise NotLoadable(f"the candidate lacks {data[0]}, which the incumbent may read")
    changed = {(root / path).resolve() for path in order.changed} or twin.own_file(case.function)
    functions: dict[str, Callable[..., Any]] = {order.project_version: case.function}
    files: dict[str, set[str]] = {}
    for name, tree in zip(order.tree_versions, trees, strict=True):
        try:
            functions[name], version = twin.find(case.function, changed, root, tree, opened)
        except SameVersion:
            call = one_call(case, case.function, inputs)
            executed_files.check_untouched(call, {str(path) for path in changed})
            if gone:
                raise NotLoadable(
                    f"the candidate lacks {gone[0]}, which the incumbent may import"
                ) from None
            raise
        version.take_settings(set_by_tests)
        functions[name] = twin.translating(functions[name], inputs, version.names, version)
        first_call(name, one_call(case, functions[name], inputs))
        files[name] = version.files
        files[order.project_version] = version.first_files
    functions[order.project_version] = twin.translating(case.function, inputs, version.names)
    # Later processes load the same files in the same way: one proof is enough.
    for name, function in () if order.replica else functions.items():
        other_files = set().union(*(paths for version, paths in files.items() if version != name))
        executed_files.check(one_call(case, function, inputs), files[name], other_files, name)
    opened = hook.opened if hook else {}
    for tree in trees:
        inside = f"{tree}{os.sep}"
        own_reads = {path for path, by in opened.items() if any(a.startswith(inside) for a in by)}
        if path := executed_files.shared(root, tree, order.changed, own_reads):
            raise NotLoadable(f"each version needs a working folder of its own, to read {path}")
    return functions


def is_reached(case: Case, order: ArmsOrder, seed: int, hook: AuditHook | None) -> bool:
    """Say whether the one version of this process imports, runs or reads a file of the change."""
    here = Path(order.tree or order.root)
    files = {(here / path).resolve() for path in order.concerning}
    used, modules = files_used(case, here, seed), project_modules(here)
    by = {"", *(name for name, path in modules.items() if path in used)}
    opened = hook.opened if hook else {}
    return any(path in used or by & readers(path, modules, opened) for path in files)


def files_used(case: Case, root: Path, seed: int) -> set[Path]:
    """Return the files below `root` that a case's function can import, and all that a call runs."""
    module = home(case.function)
    used = imported_by(module.__name__, root) if module else {*project_modules(root).values()}
    ran = executed_files.files_run(one_call(case, case.function, make_inputs(case, seed)))
    # Generated code has a name that is no file's.
    return used | {path for file in ran if (path := Path(file).resolve()).is_file()}


def in_one_order(functions: Versions, case: Case, inputs: Sequence[Any]) -> Versions:
    """Return the versions, with a copy for results in another order than the incumbent's.

    Otherwise work that a version leaves to its callers, such as a transposition, would be a gain.
    """
    if INCUMBENT not in functions:
        return functions
    results = {k: case.positional(f)(*fresh_copies(inputs)) for k, f in functions.items()}
    return {k: in_order(f, results[INCUMBENT], results[k]) for k, f in functions.items()}


def one_call(case: Case, function: Callable[..., Any], inputs: Sequence[Any]) -> Callable[[], Any]:
    restored, called = (
        RestoredArguments(fresh_copies(inputs), case.rewritten),
        case.positional(function),
    )

    def call() -> None:
        restored.restore()
        outputs = [out for out in tensors(called(*restored.live)) if out.requires_grad]
        if case.backward and outputs:
            backward(outputs, [torch.ones_like(out) for out in outputs])

    return call
