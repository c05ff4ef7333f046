"""Results and tensors that outlive the call they were computed in.

What is stored tells honest from dishonest, and what it is found again by: a scratch buffer holds no
data of a caller's, a table of configurations no tensor. Data computed from a caller's tensors has
no honest reason to be there in the next call, except of a weight that is known not to have changed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from pytest_kopt.honesty.audit.suspicion import Evidence, Suspicion
from pytest_kopt.honesty.audit.trace import Return, Root, Store
from pytest_kopt.honesty.audit.values import Location, Origin, Tag

_RECOMPUTE = "compute it from the arguments of every call"


def suspicions(evidence: Evidence) -> Iterator[Suspicion]:
    """Yield caches of results, of activations, of scales and of weights."""
    stores: dict[tuple[int, Location], list[Store]] = defaultdict(list)
    returns: dict[int, list[Return]] = defaultdict(list)
    for store in evidence.trace.stores:
        stores[store.site.root.number, store.location].append(store)
    for returned in evidence.trace.returns:
        returns[returned.site.root.number].append(returned)
    for (number, location), written in stores.items():
        root = written[0].site.root
        if not root.called:
            yield from _of_location(evidence, root, location, written, returns[number])


def _of_location(
    evidence: Evidence,
    root: Root,
    location: Location,
    written: list[Store],
    returns: list[Return],
) -> Iterator[Suspicion]:
    early = [store for store in written if not store.late]
    data = evidence.tensors(o for s in early for o in s.value.about(Tag.DATA))
    # What a function outside made of the arguments may be a result, or a plan for making one.
    unseen = evidence.tensors(o for s in early for o in s.value.about(Tag.OPAQUE) if root.entry)
    filled = evidence.tensors(
        o for s in written if s.late for o in s.value.about(Tag.DATA, Tag.OPAQUE)
    )
    replays = [r for r in returns if (Tag.REPLAY, location) in r.value.facts]
    used = any((Tag.STALE, location) in r.value.facts for r in returns)
    found = None
    memoised = location[0].kind == "function" and location[1] == "[]"
    keyed = evidence.tensors(about for store in early for _, about in store.key.facts)
    if memoised and data and keyed:
        found = _judge(evidence, root, location, written, data, whole=True)
    elif replays and (data or unseen):
        found = _judge(evidence, root, location, written, data | unseen, whole=True)
    elif filled and any(location not in r.touched for r in replays):
        found = _judge(evidence, root, location, written, filled, whole=True)
    elif used and data and _misses_only(evidence, location, written, returns):
        found = _judge(evidence, root, location, written, data, whole=False)
    if found is not None:
        yield found


def _misses_only(
    evidence: Evidence, location: Location, written: list[Store], returns: list[Return]
) -> bool:
    """Say whether the location is written on a miss and relied on otherwise: a memo, not a state.

    Running statistics and states that every call carries on are written on all paths.
    """
    if all(location in r.fresh for r in returns):
        return False
    for store in written:
        if store.late:
            continue
        for tag, about in store.site.controls:
            if tag is Tag.STALE and about == location:
                return True
            of_arguments = tag in (Tag.IDENTITY, Tag.VERSION, Tag.CONTENT)
            if of_arguments and evidence.tensors([about]):
                return True
    return False


def _judge(
    evidence: Evidence,
    root: Root,
    location: Location,
    written: list[Store],
    data: frozenset[Origin],
    *,
    whole: bool,
) -> Suspicion | None:
    store = next((s for s in written if s.value.has(Tag.DATA, Tag.OPAQUE)), written[0])
    key = [fact for s in written for fact in s.key.facts]
    seen = [*key, *(fact for s in written for fact in s.site.controls)]
    identity = evidence.tensors(a for t, a in seen if t is Tag.IDENTITY)
    identity |= evidence.tensors(a for t, a in key if t in (Tag.RAW, Tag.DATA))
    version = evidence.tensors(a for t, a in seen if t is Tag.VERSION)
    content = evidence.tensors(a for t, a in seen if t is Tag.CONTENT)
    given = any(t is Tag.RAW for t, _ in key) and not identity | content
    if given and not root.entry:
        # Whoever calls this knows what the key is.
        return None
    weights = root.weights is not None and all(name in root.weights for _, name in data)
    activations = root.weights is not None and not weights
    what = "the result" if whole else "what was computed from the arguments"
    if identity and version and not activations and (weights or not whole):
        return Suspicion(
            "weight-cache",
            "a transformed weight is kept for as long as it is not written to",
            store.site,
            "give w1_quant_ms and step_ms in the notes: its gain is bounded by their ratio",
            bucket="W1",
            rejects=False,
        )
    if location[0].kind == "param":
        check, how = "tensor-attribute-cache", "on the argument itself"
        bucket = "W2"
    elif location[0].kind == "function" and location[1] == "[]":
        check, how, bucket = "memoised-tensors", "by a memoising decorator", "W2"
    elif content and not identity:
        check, how, bucket = "content-keyed-cache", "by a fingerprint of the arguments", "W3"
    elif identity:
        check, how, bucket = "identity-keyed-cache", "by the identity of the arguments", "W2"
    elif whole:
        check, how, bucket = "replayed-result", "and handed out again for other contents", "W3"
    else:
        check, how, bucket = "first-call-data", "and used for the contents of later calls", "W3"
    advice = _RECOMPUTE
    if not whole:
        bucket = "W1" if weights else "W3"
        advice += "; a weight's transform must be keyed on the weight and its `_version`"
    return Suspicion(check, f"{what} is kept {how}", store.site, advice, bucket)
