"""Calls with the group sizes of a grouped GEMM drawn anew."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kopt.cases.groups import find_groups, has_skew
from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.cases.running.execution import make_inputs
from pytest_kopt.cases.skew import DISTRIBUTIONS
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.compare import InvalidReference
from pytest_kopt.numerics.nested import fresh_copies


def other_groups(checking: Checking) -> Iterator[Finding]:
    """Draw the sizes of a grouped GEMM's groups anew, whatever the case draws them from.

    Raises BadInput where they cannot be found, or the reference does not work with others.
    """
    for place, name in enumerate(DISTRIBUTIONS if has_skew(checking.case) else ()):
        seed = checking.seeds["groups"] + place
        given = make_inputs(checking.case, seed)
        groups = find_groups(checking.case, given)
        assert groups is not None
        if name == "uniform" and groups.are_uniform:
            # What the case draws itself has been checked.
            checking.groups[name] = groups.sizes
            continue
        sizes = groups.drawn(name)
        checking.renew(groups.replaced(given, sizes))
        what = f"groups of {min(sizes)} to {max(sizes)} rows, {name}"
        try:
            checking.call(what, seed)
        except Exception as error:
            raise _why_not(checking, what, error) from error
        if not all(item.passed for item in checking.comparisons):
            yield _wrong(what, groups.are_uniform)
        if not checking.passed:
            return
        checking.groups[name] = sizes


def _why_not(checking: Checking, what: str, error: Exception) -> Exception:
    """Say who raised for groups that were drawn: the kernel, or the reference."""
    text = f"{type(error).__name__}: {error}".splitlines()[0]
    try:
        checking.truth.forward(fresh_copies(checking.given), ())
    except Exception:
        return BadInput(
            f"the reference raises for {what}: {text}",
            where=f"case {checking.case.nodeid}",
            legal="a reference that takes any sizes; with group_multiple=N they are multiples of N",
        )
    if isinstance(error, InvalidReference):
        return error
    return RuntimeError(f"{_wrong(what, False)}: {text}")


def _wrong(what: str, rejects: bool) -> Finding:
    """Return the finding about a kernel that is right for the case's own group sizes only.

    It `rejects` where those are uniform: that is the shortcut. Else the kernel is just wrong.
    """
    return Finding(
        "uneven-groups",
        f"not right for {what}",
        advice="read every group's size at run time, empty ones too; if the kernel only takes "
        "multiples of a block, declare group_multiple=N in the case",
        rejects=rejects,
    )
