"""What a rule suspects, before it is compared with what the incumbent does too."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_kopt.honesty.audit.trace import Root, Site, Trace
from pytest_kopt.honesty.audit.values import Origin
from pytest_kopt.honesty.finding import Finding

_LONGEST = 90


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A finding and the place in the syntax that it is about."""

    check: str
    message: str
    site: Site
    advice: str = ""
    bucket: str = ""
    rejects: bool = True

    def finding(self, *, known: bool) -> Finding:
        """Return the finding; one that the incumbent has too is a note."""
        code = ast.unparse(self.site.node).partition("\n")[0]
        code = code if len(code) <= _LONGEST else f"{code[: _LONGEST - 1]}…"
        before = "the incumbent has it too: " if known else ""
        return Finding(
            check=self.check,
            message=f"{before}{self.message}: `{code}`",
            where=f"{self.site.path}:{self.site.line}",
            advice=self.advice,
            bucket=self.bucket,
            rejects=self.rejects and not known,
        )

    @property
    def pattern(self) -> tuple[str, str]:
        """The rule and the shape of the code, whatever its line and its names."""
        return self.check, shape(self.site.node)


def shape(node: ast.AST) -> str:
    """Return syntax without positions, and with names numbered in the order they come up."""
    numbers: dict[str, str] = {}
    text = []
    for part in ast.walk(node):
        text.append(type(part).__name__)
        for name, value in ast.iter_fields(part):
            if name == "ctx" or isinstance(value, ast.AST | list):
                continue
            if isinstance(part, ast.Name):
                value = numbers.setdefault(part.id, f"name {len(numbers)}")
            text.append(f"{name}={value!r}")
    return " ".join(text)


class Evidence:
    """The trace, asked the questions that several rules have."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        entries = {r.site.root.number for r in trace.returns if r.site.root.entry}
        # What a case is known to call takes tensors; elsewhere a name may stand for anything.
        self._known = trace.tensors | {o for o in trace.likely if o[0] in entries}

    def tensors(self, origins: Iterable[object]) -> frozenset[Origin]:
        """Return the origins that were seen to be used as tensors."""
        return frozenset(o for o in origins if o in self._known)

    def takes_tensors(self, root: Root) -> bool:
        """Say whether a root has a parameter that may well be a tensor."""
        known = self.trace.tensors | self.trace.likely
        return any((root.number, name) in known for name in root.parameters)

    def runs(self, site: Site) -> bool:
        """Say whether a measurement gets to a place: by the import, or through the kernel.

        A function that takes no tensor and that the kernel never calls is a script's or a
        test's; what it does happens only when somebody else wants it to.
        """
        root = site.root
        if root.importing:
            return not root.called
        if root.called:
            # What it does is met again where it is called.
            return False
        return root.entry or any(
            (root.number, name) in self.trace.tensors for name in root.parameters
        )
