"""Whether the kernel is what it was to be: written in the target language, not called from torch.

Only where the target is another language than TORCH: then a vendor's operator on the main path, or
behind a handler that swallows the kernel's own failure, is not the author's work.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_kopt.honesty.audit.statements import SWALLOWED
from pytest_kopt.honesty.audit.suspicion import Evidence, Suspicion
from pytest_kopt.honesty.audit.trace import Return
from pytest_kopt.honesty.audit.values import Object, Tag


def suspicions(evidence: Evidence, target_lang: str, devices: list[Object]) -> Iterator[Suspicion]:
    """Yield results that a vendor's operators made; `devices` are the kernel's device functions."""
    if target_lang.upper() in ("", "TORCH"):
        return
    for returned in evidence.trace.returns:
        root = returned.site.root
        if root.called or not evidence.takes_tensors(root) or returned.launched:
            continue
        if not evidence.tensors(returned.value.about(Tag.DATA)):
            continue
        if (Tag.MARK, SWALLOWED) in returned.site.controls:
            yield Suspicion(
                "swallowed-fallback",
                "when the kernel fails, torch computes the result and nobody is told",
                returned.site,
                "let the failure through, or choose the path by the arguments",
            )
        elif root.entry and not devices and not evidence.trace.launches and not _opaque(returned):
            yield Suspicion(
                "vendor-operator",
                f"torch's operators make the whole result; nothing is written in {target_lang}",
                returned.site,
                f"write it in {target_lang}, or make the campaign's target_lang TORCH",
            )


def _opaque(returned: Return) -> bool:
    return returned.value.has(Tag.OPAQUE)
