"""What the audit notes in the kernel's files stands beside the verdict, and decides nothing."""

from __future__ import annotations

from .project import KERNEL, Project
from .sources import doubled_kernel as kernel


def test_a_kernel_that_looks_at_its_caller_is_noted_and_judged_by_its_speed(
    started: Project,
) -> None:
    cheat = kernel(125.0).replace("import torch", "import sys\n\nimport torch", 1)
    cheat = cheat.replace("        spend(", "        sys._getframe(1)\n        spend(", 1)
    started.write(KERNEL, cheat)
    run = started.play(2)
    assert run.code == 0, run.text
    verdict = started.verdict(2)
    assert verdict["decision"] == "ACCEPTED"
    (flag,) = [flag for flag in verdict["flags"] if flag.startswith("stack-inspection: ")]
    line = cheat.splitlines().index("        sys._getframe(1)") + 1
    assert f"`sys._getframe` ({KERNEL}:{line})" in flag
    assert f"flag: {flag}" in run.out
    assert started.read(KERNEL) == cheat
