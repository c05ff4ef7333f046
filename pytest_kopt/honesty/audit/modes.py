"""Work that is left out once the kernel believes itself checked, or timed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pytest_kopt.honesty.audit.suspicion import Evidence, Suspicion
from pytest_kopt.honesty.audit.trace import Return
from pytest_kopt.honesty.audit.values import Location, Tag


def suspicions(evidence: Evidence) -> Iterator[Suspicion]:
    """Yield returns without work where what earlier calls left decides between them and work."""
    remembered: dict[int, set[Location]] = defaultdict(set)
    holding = {
        (store.site.root.number, store.location)
        for store in evidence.trace.stores
        if store.late or store.value.has(Tag.DATA, Tag.OPAQUE, Tag.RAW)
    }
    for store in evidence.trace.stores:
        # Counts, sizes that were met, flags: nothing that a result could be made of.
        if (store.site.root.number, store.location) not in holding:
            remembered[store.site.root.number].add(store.location)
    returns: dict[int, list[Return]] = defaultdict(list)
    for returned in evidence.trace.returns:
        returns[returned.site.root.number].append(returned)
    for number, each in returns.items():
        root = each[0].site.root
        if root.called or not remembered[number]:
            continue
        if not any(_works(evidence, r) for r in each):
            continue
        for returned in each:
            if _works(evidence, returned) or not _answers(evidence, returned):
                continue
            states = {a for t, a in returned.site.controls if t is Tag.STALE}
            if states & remembered[number]:
                yield Suspicion(
                    "skipped-work",
                    "what earlier calls left decides that nothing is computed",
                    returned.site,
                    "do the same work in every call",
                )


def _works(evidence: Evidence, returned: Return) -> bool:
    return returned.launched or bool(evidence.tensors(returned.value.about(Tag.DATA, Tag.OPAQUE)))


def _answers(evidence: Evidence, returned: Return) -> bool:
    """Say whether something like a result is returned: an argument, or memory nobody filled."""
    if returned.value.has(Tag.REPLAY):
        return False
    local = any(o.kind == "tensor" for o in returned.value.objects)
    return local or returned.argument
