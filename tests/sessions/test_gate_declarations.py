"""A pull request judged by what the base declares: its cases, its kernel's results and limits."""

from __future__ import annotations

import pytest

from .paired import (
    FASTER,
    OLD,
    PLAIN,
    PLAIN_CASE,
    SLOWER,
    Gate,
    cases,
    kernel,
)

long = pytest.mark.long


LOOSER = """\
        gate=tolerance(rtol=0.1, atol=0.1),
        dims="""


def test_a_kernel_is_judged_by_what_the_base_declares_as_well(gate: Gate) -> None:
    """It computes another function, and so does the reference of its pull request."""
    project = gate.project
    project.write(PLAIN, kernel(FASTER, "new", factor=3.0))
    project.replace("tests/test_plain.py", "2 * x.double()", "3 * x.double()")
    done = gate()
    assert done.run.code == 1, done.run.text
    assert done.judged["decision"] == "REPAIR"
    assert "1 case(s) are wrong by what the base's cases declare" in done.judged["reason"]
    assert "in a pull request of its own first" in done.judged["next_step"]


@pytest.mark.parametrize("factor", [pytest.param(3.0, marks=long), 2.02])
def test_a_helper_that_makes_kernel_and_reference_wrong_is_refused(
    gate: Gate, factor: float
) -> None:
    """The base's reference, with the base's helper, judges what the timed calls gave."""
    project = gate.project
    imports = "from kernels import scale"
    project.write("kernels/scale.py", "FACTOR = 2.0\n")
    project.write(PLAIN, kernel(OLD, imports=imports, factor="scale.FACTOR"))
    project.replace("tests/test_plain.py", "2 * x.double()", "scale.FACTOR * x.double()")
    project.replace("tests/test_plain.py", "import torch", f"import torch\n{imports}")
    project.commit_all("The base")
    project.write("kernels/scale.py", f"FACTOR = {factor}\n")
    done = gate()
    assert done.run.code in (1, 8), done.run.text


def test_what_a_pull_request_declares_less_is_named_first(gate: Gate) -> None:
    project = gate.project
    project.replace("tests/test_plain.py", "dims=", LOOSER.strip())
    wider = 'domain=("declared shapes", "contiguous")'
    project.replace("tests/test_plain.py", 'domain="declared shapes"', wider)
    project.replace(
        "tests/test_plain.py", "import torch", "import torch\nfrom pytest_kopt import *"
    )
    project.replace("tests/test_plain.py", "torch.ones(1, 8)", "2 * torch.ones(1, 8)")
    project.replace("tests/test_plain.py", "dims=", "limit_pct=50, dims=")
    done = gate()
    assert done.run.code == 0, done.run.text
    assert done.judged["reason"].startswith(
        "the cases declare less than the base's: plain rows=1 accepts allclose(rtol=0.1, atol=0.1) "
        "for out, the base allclose(rtol=0.0001, atol=0.0001); plain rows=1 excludes contiguous by "
        "its domain; plain rows=1 may be slower by 50 %, at the base by 5 %; "
        "plain rows=1 draws other inputs; no kernel code changed"
    )


def test_a_slower_kernel_is_judged_by_the_bases_limit(gate: Gate) -> None:
    project = gate.project
    project.write(PLAIN, kernel(SLOWER, "new"))
    project.replace("tests/test_plain.py", "dims=", "limit_pct=100, dims=")
    done = gate()
    assert done.run.code == 8, done.run.text
    assert "may be slower by 100 %, at the base by 5 %" in done.judged["reason"]
    assert "beyond the regression limit of 5 %" in done.judged["reason"]


NARROWER = 'domain=("declared shapes", "declared signs", "moderate values", "finite")'


def test_a_kernel_is_tried_beyond_a_narrower_domain(gate: Gate) -> None:
    """Where the base's case did not exclude it, and the base's kernel is right there."""
    project = gate.project
    project.write("kernels/right.py", kernel(name="right"))
    project.write(
        "tests/test_plain.py", cases(("kernels.right", "right"), ("kernels.plain", "plain"))
    )
    project.commit_all("Two kernels")
    project.write("kernels/right.py", kernel(FASTER, "new", name="right"))
    project.write(PLAIN, kernel(FASTER, "new").replace("* x", "* x.abs()"))
    text = project.read("tests/test_plain.py")
    project.write("tests/test_plain.py", text.replace('domain="declared shapes"', NARROWER))
    done = gate()
    assert done.run.code == 1, done.run.text
    reason = done.judged["reason"]
    assert "excludes declared signs, finite, moderate values by its domain" in reason
    assert "held-out-range" in reason
    assert {finding["where"] for finding in done.judged["findings"]} == {PLAIN_CASE}


def test_what_a_pull_request_declares_tighter_is_named_and_passes(gate: Gate) -> None:
    project = gate.project
    project.replace("tests/test_plain.py", "dims=", "gate=bitwise(),\n        dims=")
    imports = "import torch\nfrom pytest_kopt import bitwise"
    project.replace("tests/test_plain.py", "import torch", imports)
    project.replace("tests/test_plain.py", '        domain="declared shapes",\n', "")
    done = gate()
    assert done.run.code == 0, done.run.text
    assert done.judged["reason"].startswith("no kernel code changed")
    named = "declared otherwise than at the base, and no looser: plain rows=1"
    assert done.judged["flags"] == [
        f"{named} accepts bitwise equal for out, the base allclose(rtol=0.0001, atol=0.0001)",
        f"{named} no longer excludes declared shapes by its domain",
    ]


#: A kernel that registers something with torch cannot be loaded beside another version.
REGISTERS = """

import torch

OPERATORS = torch.library.Library("plain", "FRAGMENT")
"""


def test_a_kernel_far_less_exact_than_the_bases_is_refused(gate: Gate) -> None:
    """Within the tolerance of float32: 80 dB where the base has all of them."""
    gate.project.write(PLAIN, kernel(FASTER, "new", factor=2.0002) + REGISTERS)
    done = gate()
    assert done.run.code == 8, done.run.text
    (finding,) = done.judged["findings"]
    assert (finding["check"], finding["where"]) == ("precision-downgrade", PLAIN_CASE)


@pytest.mark.parametrize(
    ("result", "check"),
    [
        ("(2.0 * x).half()", "output-dtype"),
        pytest.param("(2.0 * x)[:, :1].expand(x.shape)", "output-layout", marks=long),
    ],
)
def test_results_are_of_the_bases_dtype_and_have_memory_of_their_own(
    gate: Gate, result: str, check: str
) -> None:
    text = kernel(FASTER, "new").replace("return 2.0 * x", f"return {result}")
    gate.project.write(PLAIN, text)
    done = gate()
    assert done.run.code == 1, done.run.text
    (finding,) = done.judged["findings"]
    assert (finding["check"], finding["where"]) == (check, PLAIN_CASE)
    assert done.judged["reason"] == f"the results are not the base's: {check}"


def test_a_kernel_as_exact_as_the_bases_passes_in_two_processes(gate: Gate) -> None:
    gate.project.write(PLAIN, kernel(FASTER, "new") + REGISTERS)
    done = gate()
    assert done.run.code == 0 and done.judged["findings"] == [], done.run.text
    assert any("two processes" in flag for flag in done.judged["flags"]), done.judged["flags"]
    (shape,) = done.judged["shapes"]
    assert shape["memory"]["candidate_bytes"] > 0 and shape["memory"]["incumbent_bytes"] > 0
    assert shape["first_call_ms"]["candidate"] > 0 and shape["first_call_ms"]["incumbent"] > 0
