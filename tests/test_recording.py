"""Recorded cases: what a run called, and inputs like those."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pytest_kopt import record, recorded
from pytest_kopt.cli.main import main
from pytest_kopt.errors import BadInput
from pytest_kopt.recording import recorded_cases
from pytest_kopt.recording.recorded_cases import _weights
from pytest_kopt.recording.recorder import DTYPES
from tests.builders import few_examples


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with a function, and another one that holds the function already."""
    module, user = ModuleType("recorded_kernels"), ModuleType("recorded_user")
    source = "def scale(x, factor=2, bias=None):\n    return x * factor\n"
    source += "def first(*values):\n    return values[0]\n"
    exec(source, vars(module))
    vars(user).update(scale=vars(module)["scale"], first=vars(module)["first"])
    for made in (module, user):
        monkeypatch.setitem(sys.modules, made.__name__, made)
    return user


def test_each_signature_is_kept_with_how_often_it_was_called(
    kernels: ModuleType, tmp_path: Path
) -> None:
    before = kernels.scale
    wide = torch.arange(12.0).reshape(3, 4)
    with record("recorded_kernels:scale", into=tmp_path / "r"):
        for _ in range(3):
            assert torch.equal(kernels.scale(wide), wide * 2)
        kernels.scale(wide.T, 3)
        kernels.scale(x=torch.ones(4, dtype=torch.int64), bias=None)
    assert kernels.scale is before
    cases = {case.label: case for case in recorded(tmp_path / "r")}
    assert {label: case.calls for label, case in cases.items()} == {
        "scale x=float32[3x4]": 3,
        "scale x=float32[4x3] stride [1, 4] factor=3": 1,
        "scale x=int64[4] bias=None": 1,
    }
    assert sum(case.weight for case in cases.values()) == pytest.approx(1)
    turned = cases["scale x=float32[4x3] stride [1, 4] factor=3"].inputs()
    assert isinstance(turned, dict) and turned["factor"] == 3
    assert turned["x"].stride() == (1, 4) and turned["x"].shape == (4, 3)
    assert turned["x"].min() >= 0 and turned["x"].max() <= 11
    whole = cases["scale x=int64[4] bias=None"].inputs()
    assert isinstance(whole, dict) and whole["bias"] is None
    assert torch.equal(whole["x"], torch.ones(4, dtype=torch.int64))
    assert not (tmp_path / "r" / "contents.safetensors").exists(), "nobody asked for contents"


def test_contents_come_back_where_they_were_asked_for(kernels: ModuleType, tmp_path: Path) -> None:
    x = torch.randn(2, 5).to(torch.bfloat16).requires_grad_()
    with record("recorded_kernels:scale", into=tmp_path, contents=True):
        kernels.scale(x)
    (case,) = recorded(tmp_path)
    first, second = case.inputs(), case.inputs()
    assert isinstance(first, dict) and isinstance(second, dict)
    assert torch.equal(first["x"], x) and first["x"].requires_grad
    assert first["x"].data_ptr() != second["x"].data_ptr(), "fresh ones each time"
    file = tmp_path / "contents.safetensors"
    file.write_bytes(file.read_bytes()[:20])
    recorded_cases._contents.cache_clear()
    with pytest.raises(BadInput, match="cannot be read"):
        case.inputs()


@pytest.mark.parametrize("shape", [(2, 3), (0, 3), ()], ids=str)
def test_contents_are_kept_in_every_dtype(
    shape: tuple[int, ...], kernels: ModuleType, tmp_path: Path
) -> None:
    tensors = [torch.ones(shape).to(getattr(torch, dtype)) for dtype in DTYPES]
    with record("recorded_kernels:first", into=tmp_path, contents=True):
        kernels.first(*tensors)
    (case,) = recorded(tmp_path)
    for drawn, tensor in zip(case.inputs(), tensors, strict=True):
        assert drawn.dtype == tensor.dtype and torch.equal(drawn.float(), tensor.float())


def test_contents_of_an_expanded_tensor_are_fresh_too(kernels: ModuleType, tmp_path: Path) -> None:
    with record("recorded_kernels:scale", into=tmp_path, contents=True):
        kernels.scale(torch.ones(1).expand(4))
    (case,) = recorded(tmp_path)
    for _ in range(2):
        arguments = case.inputs()
        assert isinstance(arguments, dict) and arguments["x"].sum() == 4
        arguments["x"].zero_()


def test_contents_need_a_package_and_the_run_does_not_start_without(
    kernels: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    with (
        pytest.raises(BadInput, match=r"safetensors is not installed.*pip install safetensors"),
        record("recorded_kernels:scale", into=tmp_path / "all", contents=True),
    ):
        pytest.fail("the program runs")
    with record("recorded_kernels:scale", into=tmp_path / "shapes"):
        kernels.scale(torch.ones(3))
    assert recorded(tmp_path / "shapes")[0].inputs()


def test_a_tensor_of_a_dtype_that_is_not_drawn_ends_no_run(
    kernels: ModuleType, tmp_path: Path
) -> None:
    with record("recorded_kernels:scale", into=tmp_path, contents=True):
        kernels.scale(torch.ones(2, dtype=torch.complex128))
    with pytest.raises(BadInput, match="complex128 tensor"):
        recorded(tmp_path)


def test_what_cannot_be_recorded_or_drawn_is_named(kernels: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"pkg\.mod:function"), record("recorded_kernels:none", "r"):
        pass
    with record("recorded_kernels:scale", into=tmp_path):
        kernels.scale(torch.ones(1), factor=torch.nn.Identity().training and 2, bias=object())
    with pytest.raises(BadInput, match="an argument of the type object"):
        recorded(tmp_path)
    with (
        pytest.raises(BadInput, match="holds a record already"),
        record("recorded_kernels:scale", into=tmp_path),
    ):
        pass
    with record("recorded_kernels:scale", into=tmp_path / "none"):
        pass
    with pytest.raises(BadInput, match="scale was not called"):
        recorded(tmp_path / "none")
    with record("recorded_kernels:scale", into=tmp_path / "none"):
        kernels.scale(torch.ones(1))
    assert len(recorded(tmp_path / "none")) == 1
    with pytest.raises(BadInput, match="holds no record"):
        recorded(tmp_path / "nowhere")


def test_a_program_is_recorded_from_outside(tmp_path: Path) -> None:
    (tmp_path / "ops.py").write_text("def scale(x):\n    return 2 * x\n")
    text = "import sys, torch\nfrom ops import scale\nscale(torch.ones(int(sys.argv[1])))\n"
    (tmp_path / "train.py").write_text(text)
    command = ("-m", "pytest_kopt.cli", "record", "--call", "ops:scale", "--into", "r")
    words = [sys.executable, *command, "--", "python", "train.py", "7"]
    run = subprocess.run(
        words, cwd=tmp_path, check=True, timeout=300, capture_output=True, text=True
    )
    (case,) = recorded(tmp_path / "r")
    assert case.label == "scale x=float32[7]"
    document = json.loads((tmp_path / "r" / "record.json").read_text())
    assert document["function"] == "ops:scale" and document["signatures"][0]["calls"] == 1
    assert "1 calls of 1 signatures" in run.stderr


def test_only_python_programs_are_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["record", "--call", "ops:scale", "--", "make", "train"]) == 4
    assert "no Python program" in capsys.readouterr().err


class Block(torch.nn.Module):
    """A layer whose norm a module `recorded_model` holds."""

    def __init__(self, kernels: ModuleType) -> None:
        super().__init__()
        self.kernels = kernels
        self.weight = torch.nn.Parameter(torch.ones(8))
        self.inner = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.inner(self.kernels.norm(x, self.weight)))


def test_a_training_step_and_a_growing_sequence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Counts add up to the calls, weights to the time, and gradients are asked for in training."""
    kernels = ModuleType("recorded_model")
    exec(
        "def norm(x, weight):\n    return x / x.norm(dim=-1, keepdim=True) * weight\n",
        vars(kernels),
    )
    monkeypatch.setitem(sys.modules, kernels.__name__, kernels)
    model = torch.nn.Sequential(Block(kernels), Block(kernels))
    with record("recorded_model:norm", into=tmp_path / "training"):
        for batch in (4, 4, 4, 2):
            model(torch.randn(batch, 3, 8)).sum().backward()
        with torch.no_grad():
            model(torch.randn(4, 3, 8))
    cases = {case.label: case for case in recorded(tmp_path / "training")}
    # The first layer's input asks for no gradient; its weight does, unless gradients are off.
    assert {label: (case.calls, case.backward) for label, case in cases.items()} == {
        "norm x=float32[4x3x8] weight=float32[8] grad": (3, True),
        "norm x=float32[4x3x8] grad weight=float32[8] grad": (3, True),
        "norm x=float32[2x3x8] weight=float32[8] grad": (1, True),
        "norm x=float32[2x3x8] grad weight=float32[8] grad": (1, True),
        "norm x=float32[4x3x8] weight=float32[8]": (2, False),
    }
    with record("recorded_model:norm", into=tmp_path / "inference"), torch.inference_mode():
        for length in range(1, 41):
            model(torch.randn(1, length, 8))
    whole, some = (recorded(tmp_path / "inference", most) for most in (None, 5))
    assert len(whole) == 40 and {case.calls for case in whole} == {2}
    assert len(some) <= 5 and {case.label for case in some} <= {case.label for case in whole}
    for cases_of in (whole, some, [*cases.values()]):
        assert sum(case.weight for case in cases_of) == pytest.approx(1)
    assert not any(case.backward for case in whole)


@few_examples
@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=30), st.integers(1, 8))
def test_some_stand_for_all(seconds: list[float], most: int) -> None:
    weights = _weights(seconds, most)
    assert sum(weights.values()) == pytest.approx(1)
    assert len(weights) <= most
    if len(seconds) > most:
        # Each is off by less than one of the equal parts.
        for place, part in enumerate(seconds):
            assert abs(weights.get(place, 0) - part / sum(seconds)) <= 1 / most + 1e-9
