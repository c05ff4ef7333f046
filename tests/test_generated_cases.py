"""Cases from shapes: what a line says, and the test file that comes of it."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest
import torch

from pytest_kopt.cli.main import main
from pytest_kopt.errors import BadInput
from pytest_kopt.standalone.cases import Argument, Cases, beyond_torch, parse

OLD = "import torch\n\n\ndef f(x, *rest):\n    return torch.exp(x)\n"


def test_a_line_has_tensors_and_literals() -> None:
    assert parse("f32[4096, 1024] i64[8]<100 3 None 1e-5") == (
        Argument("", "f32", (4096, 1024)),
        Argument("", "i64", (8,), 100),
        *(Argument("", literal=text) for text in ("3", "None", "1e-5")),
    )
    assert parse("x=bf16[8] eps=1e-5") == (
        Argument("x", "bf16", (8,)),
        Argument("eps", literal="1e-5"),
    )


def test_examples_of_lines_can_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--help"]) == 0
    (shown,) = re.findall(
        r"may be\s+repeated:(.*?)--write-test", capsys.readouterr().out, re.DOTALL
    )
    page = (Path(__file__).parents[1] / "docs/compare.md").read_text()
    lines = [*re.findall(r"'(.*?)'", shown, re.DOTALL), *re.findall("--shapes '(.*?)'", page)]
    assert len(lines) > 5
    for line in lines:
        parse(line)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("", "no tensor"),
        ("3", "no tensor"),
        ("f33[4]", "no known dtype"),
        ("f32[4", "neither a tensor nor a literal"),
        ("f32[4] __import__('os')", "neither a tensor nor a literal"),
        ("i32[4]", "i32[4]<1000"),
        ("x=f32[4] f32[4]", "all by name or all by position"),
        ("f32[4] 'open", "quotation"),
    ],
)
def test_what_is_no_line_is_refused(line: str, said: str) -> None:
    with pytest.raises(BadInput) as refused:
        parse(line)
    assert said in str(refused.value) and "--shapes" in str(refused.value)


@pytest.mark.parametrize(
    ("source", "is_plain"),
    [
        ("import torch\nimport math", True),
        ("from torch.nn import functional as F", True),
        ("import torch\nimport triton", False),
        ("from torch.utils.cpp_extension import load_inline", False),
        ("import torch\ny = torch.ops.mine.gemm", False),
        ("import torch\ny = lambda a: torch._scaled_mm(a)", False),
    ],
)
def test_plain_torch_computes_in_float64(source: str, is_plain: bool) -> None:
    assert (not beyond_torch(source.encode())) == is_plain


def made(folder: Path, *lines: str, function: str = "f", at: str | None = None) -> Cases:
    """Make cases for two files beside each other."""
    for name in ("old", "new"):
        (folder / f"{name}.py").write_text(OLD)
    paths = [folder / "old.py", folder / "new.py"]
    return Cases.made(function, lines, paths, at, "test_f.py")


def test_sizes_that_are_always_equal_are_one_parameter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = made(tmp_path, "f32[64,32] f32[32,64]", "f32[16,8] f32[8,4]", "f16[1,8]", "f16[1,8]")
    assert (cases.place, cases.words) == ("new.py", ("test_f.py",))
    assert cases.files["reference_f.py"].decode() == OLD
    text = cases.files["test_f.py"].decode()
    compile(text, "test_f.py", "exec")
    assert '"n0, n1, n2", [(64, 32, 64), (16, 8, 4)])' in text
    assert "torch.randn((n1, n2), dtype=torch.float32" in text
    assert '"n0", [8])' in text and "torch.randn((1, n0), dtype=torch.float16" in text
    assert cases.reference == "old.py in float64"


def test_the_older_version_imports_what_its_package_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    package = tmp_path / "package"
    package.mkdir()
    (package / "helper.py").write_text("TWO = 2\n")
    old = package / "old.py"
    old.write_text("from .helper import TWO\n\n\ndef f(x):\n    return TWO * x\n")
    cases = Cases.made("f", ["f32[4]"], [old, old], None, "test_f.py")
    for path, source in cases.files.items():
        (tmp_path / path).write_bytes(source)
    monkeypatch.syspath_prepend(tmp_path)
    test = runpy.run_path("test_f.py")
    assert test["reference"](21) == 42
    assert (
        cases.reference == "old.py's own results, as it uses helper: an error of both is not seen"
    )


def test_the_reference_writes_what_the_older_version_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    old = tmp_path / "clamped.py"
    old.write_text("def f(x, y):\n    return x.clamp_(min=0) + y\n")
    cases = Cases.made("f", ["x=f32[4] y=f32[4]"], [old, old], None, "test_f.py")
    for path, source in cases.files.items():
        (tmp_path / path).write_bytes(source)
    monkeypatch.syspath_prepend(tmp_path)
    test = runpy.run_path("test_f.py")
    x, y = torch.tensor([-1.0, 1.0]), torch.tensor([2.0, 2.0])
    result = test["reference"](x, y=y)
    assert result.dtype == torch.float64 and result.tolist() == [2.0, 3.0]
    assert x.tolist() == [0.0, 1.0] and y.tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"function": "g"}, "old.py does not define 'g'"),
        ({"at": "soft-max.py"}, "no name that a test can import"),
    ],
)
def test_a_function_that_no_test_could_import_is_refused(
    arguments: dict[str, str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=said):
        made(tmp_path, "f32[4]", **arguments)
    with pytest.raises(BadInput, match="all sizes of a case are 1"):
        made(tmp_path, "f32[1]")
