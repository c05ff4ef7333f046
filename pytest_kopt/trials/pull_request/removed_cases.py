"""The verdict of a pull request from which cases are gone."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_kopt.decide.verdict import Decision, Verdict


def without(gone: Sequence[str], new: Sequence[str], verdict: Verdict) -> Verdict:
    """Return the verdict on a change that removes cases: refused, unless it is worse as it is."""
    if not gone or not (verdict.decision.keeps or verdict.decision is Decision.INCONCLUSIVE):
        return verdict
    names = some(gone)
    renamed = f" or have a new name ({some(new)})" if new else ""
    return verdict.model_copy(
        update={
            "decision": Decision.ROLLED_BACK,
            "reason": f"{len(gone)} case(s) of the base are gone, skipped or xfailed, and nothing "
            f"says that their shapes are not slower: {names}; of the others: {verdict.reason}",
            "next_step": "bring them back, or pass --kopt-allow-removed if they are meant to go"
            + renamed,
            "removed": list(gone),
        }
    )


def some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:3]) + (", …" if len(ids) > 3 else "")
