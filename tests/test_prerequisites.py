"""What has to be there before round 1, and how `kopt init` is told of it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.campaign import prerequisites
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.prerequisites import case_gaps, gaps
from pytest_kopt.cli import manifest_options
from pytest_kopt.devices.pinning import Host
from tests.builders import manifest_document
from tests.fake_gpus import FakeVendor, gpu

#: What the plugin writes; everything else a person sets.
OURS = {"execution_mode", "created", "csv_schema", "quick_command"}


def set_by(*words: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    manifest_options.add_options(parser)
    return manifest_options.given(parser.parse_args(words), [])


@pytest.mark.parametrize("key", sorted(set(Manifest.model_fields) - OURS))
def test_every_key_that_a_person_sets_has_an_option(key: str) -> None:
    option = f"--{key.replace('_', '-')}"
    words = (option,) if key == "git_commit" else (option, "A=1")
    assert list(set_by(*words)) == [key]
    assert not set_by()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--op", "softmax", "--gpu", "H200"), {"target_op": "softmax", "target_gpu": "H200"}),
        (("--kernel", "a.py", "--kernel", "b.py"), {"kernel_source": ["a.py", "b.py"]}),
        (("--classes", "M, N"), {"classes": ["M", "N"]}),
        (("--env", "A=1", "--env", "B=x=y"), {"env": {"A": "1", "B": "x=y"}}),
        (("--max-iterations", "9"), {"max_iterations": 9}),
        (("--max-iterations", "many"), {"max_iterations": "many"}),
        (("--core-shapes", "all"), {"core_shapes": "all"}),
        (("--core-shapes", "M=1, N=2"), {"core_shapes": ["M=1, N=2"]}),
        (("--no-git-commit",), {"git_commit": False}),
        (("--engine", "graph"), {"engine": "graph"}),
        (("--benchmark", "python b.py"), {"benchmark_command": "python b.py"}),
    ],
)
def test_an_option_gives_its_keys_type(words: tuple[str, ...], found: dict[str, Any]) -> None:
    assert set_by(*words) == found


def found_in(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    gpus: str = "",
    elsewhere: bool = False,
    **changes: Any,
) -> list[str]:
    """Return the gaps of a project whose tests are fine, on a host with one GPU or none."""
    kernel = tmp_path / "kernels/softmax.py"
    kernel.parent.mkdir(exist_ok=True)
    kernel.write_text("")
    if changes.get("target_gpu") == "cpu":
        changes = {"target_backend": "TORCH", "target_lang": "TORCH", **changes}
    if gpus:
        host = Host(FakeVendor([gpu(0)]), (gpu(0),))
        monkeypatch.setattr(prerequisites, "discover", lambda kind: host)
    manifest = Manifest.model_validate(manifest_document(**changes))
    return [*gaps(manifest, tmp_path, elsewhere=elsewhere), *case_gaps(manifest, tmp_path)]


def test_the_target_has_to_be_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")
    (gap,) = found_in(tmp_path, monkeypatch, target_gpu="MI300X")
    assert gap.startswith("target_gpu: no gfx942 here")
    assert found_in(tmp_path, monkeypatch, target_gpu="MI300X", elsewhere=True) == []
    assert found_in(tmp_path, monkeypatch, target_gpu="cpu") == []
    (gap,) = found_in(tmp_path, monkeypatch, target_gpu="MI300X", gpus="H200")
    assert "the campaign is for gfx942, here is sm_90" in gap
    assert found_in(tmp_path, monkeypatch, target_gpu="H200", gpus="H200") == []


def test_programs_are_looked_for_as_they_will_be_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "tool/build.sh"
    script.parent.mkdir()
    script.write_text("#!/bin/sh\n")
    words: dict[str, Any] = {"target_gpu": "cpu", "rebuild_command": "A=1 ./tool/build.sh"}
    (gap,) = found_in(tmp_path, monkeypatch, **words)
    assert gap == "rebuild_command: the program './tool/build.sh' is not on PATH"
    script.chmod(0o755)
    assert found_in(tmp_path, monkeypatch, **words) == []
    on_path = {**words, "rebuild_command": "build.sh"}
    assert len(found_in(tmp_path, monkeypatch, **on_path)) == 1
    assert found_in(tmp_path, monkeypatch, **on_path, env={"PATH": str(script.parent)}) == []


def test_the_first_gap_hides_none_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = found_in(
        tmp_path,
        monkeypatch,
        target_gpu="cpu",
        kernel_source=["a.py", "b.cu"],
        quick_command="not-there-either",
        test_command="not-there",
        format_command="'",
        policy="mild",
    )
    for part in ("'a.py' does not", "'b.cu' does not", "rebuild", "not-there", "split", "'mild'"):
        assert any(part in gap for gap in found), (part, found)
    assert len(found) == 6


def test_the_interpreter_decides_no_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every round of one ended with exit code 11, the baseline too."""
    words: dict[str, Any] = {"target_backend": "TRITON", "target_lang": "TRITON"}
    (gap,) = found_in(tmp_path, monkeypatch, target_gpu="cpu", **words)
    assert "exit code 11" in gap and "--elsewhere" in gap and "--kopt-check-only" in gap


def test_nothing_of_the_project_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Importing a kernel may build it, for a minute."""
    tests = tmp_path / "tests/test_x.py"
    tests.parent.mkdir()
    tests.write_text("raise SystemExit('imported')\n\n\ndef test_x(): pass")
    found = found_in(tmp_path, monkeypatch, target_gpu="cpu", policy="mild", tests="tests")
    assert ["'mild'" in found[0], "no test marked kopt is found under `tests`" in found[1]] == [
        True,
        True,
    ]
