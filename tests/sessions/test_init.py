"""`kopt init`: a campaign is set up once everything it needs is there."""

from __future__ import annotations

import re
import shutil

import pytest
import yaml

from pytest_kopt.campaign.layout import campaigns

from .project import CAMPAIGN, KERNEL, Project
from .sources import SETTINGS

CASES = "tests/test_work.py"
CASE = """\
import pytest
from {module} import work


@pytest.mark.kopt
def test_work(kopt):
    import torch

    kopt(work, inputs=lambda: (torch.ones(2),), reference=lambda x: x, dims={{"n": 2}})
"""
GIVEN = ("--op", "work", "--backend", "TORCH", "--gpu", "H200", "--elsewhere")


@pytest.fixture
def ready(empty: Project) -> Project:
    """A committed project that a campaign may start from."""
    empty.write("pyproject.toml", SETTINGS)
    empty.write(KERNEL, "def work(x):\n    return x\n")
    empty.write(CASES, CASE.format(module="kernels.doubled"))
    empty.write("notes.txt", "mine\n")
    empty.write(".gitignore", "__pycache__/\n")
    empty.commit_all()
    return empty


def test_a_campaign_is_set_up(ready: Project) -> None:
    """The tree may be dirty but for the kernel; what was not given is filled in and printed."""
    ready.write("notes.txt", "edited\n")
    words = ("--kernel", KERNEL, "--tests", CASES, "--env", "TUNE=1", "--max-iterations", "119")
    run = ready.kopt("init", CAMPAIGN, *GIVEN, *words, "--classes", "n, kind", "--verbose")
    assert run.code == 0, run.text

    manifest = yaml.safe_load((ready.campaign / "manifest.yaml").read_text())
    given = {
        "target_op": "work",
        "target_backend": "TORCH",
        "target_lang": "TORCH",
        "target_gpu": "sm_90",
        "kernel_source": [KERNEL],
        "tests": CASES,
        "env": {"TUNE": "1"},
        "max_iterations": 119,
        "classes": ["n", "kind"],
    }
    defaults = {
        "execution_mode": "repo",
        "policy": "primus",
        "engine": "auto",
        "core_shapes": "all",
        "target_shapes": "all",
        "schema": None,
        "primary_metric": None,
        "git_commit": True,
        "git_branch": f"optimize/{CAMPAIGN}",
    }
    assert manifest == {**manifest, **given, **defaults}
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", manifest["created"])
    for key in manifest:
        assert re.search(rf"^{key}:", run.out, re.MULTILINE), "every field is printed to confirm"
    assert f"pytest --kopt-campaign {CAMPAIGN} --kopt-round 1" in run.out
    assert run.out.startswith(f"branch: optimize/{CAMPAIGN}, checked out now; main is as it was")
    assert re.search(r"^commits: by .+ <.+>.*; without hooks or signatures$", run.out, re.MULTILINE)
    readme = (ready.campaign / "README.md").read_text()
    for title in ("Target", "Inputs", "Hard constraints", "Hardware facts", "Roofline"):
        assert f"## {title}\n" in readme
    assert "Stop Conditions" in readme and "TBD" in readme
    assert "4.8 TB/s <- knowledge/hardware/sm_90/spec.yaml:H200.hbm_bandwidth" in readme
    assert "H200: memory-bound below 206 FLOP/byte" in readme

    assert ready.git("branch", "--show-current").strip() == f"optimize/{CAMPAIGN}"
    assert ready.git("status", "--porcelain").splitlines() == [" M notes.txt"]

    before = ready.contents()
    run = ready.kopt("init", CAMPAIGN, *GIVEN, *words)
    assert run.code == 4 and "exists already" in run.refusal
    assert ready.contents() == before
    assert ready.kopt("remove", CAMPAIGN, "--yes").code == 0
    run = ready.kopt("init", CAMPAIGN, *GIVEN, *words)
    assert run.out.startswith(f"branch: optimize/{CAMPAIGN}, as before\n")


def test_a_tree_with_one_kernel_and_one_test_needs_no_option(ready: Project) -> None:
    """Nor a repository: then snapshots keep the versions."""
    shutil.rmtree(ready.root / ".git")
    run = ready.kopt("init")
    assert run.code == 0, run.text
    first, second, *_ = run.out.splitlines()
    assert first.startswith("no git repository: snapshots keep every version")
    for text in (f"--kernel {KERNEL}", "--op doubled", "--backend TORCH", "--gpu cpu"):
        assert text in second
    (name,) = campaigns(ready.root / "agent/workspace")
    assert re.fullmatch(r"doubled_torch_cpu_\d{8}", name)
    files = sorted(path for path in ready.contents() if not path.startswith("agent/"))
    ready.git("init", "--quiet")
    ready.git("add", "--all")
    assert ready.git("ls-files").splitlines() == files, "a later repository has no campaign"
    run = ready.kopt("init", "--kernel", "kernels/absent.cu")
    assert run.code == 4 and "--backend is missing" in run.text and "--gpu" not in run.text


def test_each_file_that_may_be_the_kernel_has_its_command(ready: Project) -> None:
    """Those that a package hands on as well; a helper's imports count for the kernel's backend."""
    ready.write("kernels/__init__.py", "from .doubled import work\nfrom .fused import joined\n")
    ready.write("kernels/fused.py", "from kernels.helper import work as joined\n")
    ready.write("kernels/helper.py", "import triton\n\n\ndef work(x):\n    return x\n")
    ready.write(CASES, CASE.format(module="kernels"))
    ready.commit_all()
    before = ready.contents()
    run = ready.kopt("init", CAMPAIGN)
    assert run.code == 4 and ready.contents() == before, run.text
    assert "tests of cases import 2 files that may be the kernel" in run.refusal
    commands = re.findall(r"^  kopt init (.*)$", run.text, re.MULTILINE)
    assert commands == [
        f"{CAMPAIGN} --kernel {KERNEL} --backend TORCH --gpu cpu",
        f"{CAMPAIGN} --kernel kernels/fused.py --backend TRITON --gpu cpu",
    ]
    ready.write(CASES, CASE.format(module="elsewhere"))
    run = ready.kopt("init")
    assert run.code == 4 and "Fix: kopt init --kernel PATH" in run.refusal


def test_a_helper_of_the_project_leaves_plain_torch_plain(ready: Project) -> None:
    ready.write("kernels/helper.py", "import torch\n\n\ndef same(x):\n    return x\n")
    ready.write(KERNEL, "import torch\nfrom kernels.helper import same as work\n")
    ready.commit_all()
    run = ready.kopt("init", CAMPAIGN)
    assert run.code == 0 and "--backend TORCH, --gpu cpu" in run.out, run.text


@pytest.mark.parametrize(
    ("imports", "options", "backend"),
    [
        ("from torch.utils.cpp_extension import load_inline", ("--gpu", "H200"), "CUDA"),
        ("import torch.utils.cpp_extension as native", ("--gpu", "MI300X"), "HIP"),
        ("import cutlass.cute as cute", ("--gpu", "H200"), "CUTEDSL"),
        ("import torch\nout = torch.ops.aten.mul.out", ("--gpu", "H200"), "TORCH"),
    ],
)
def test_the_imports_of_a_kernel_show_its_backend(
    ready: Project, imports: str, options: tuple[str, ...], backend: str
) -> None:
    ready.write(KERNEL, f"{imports}\n\n\ndef work(x):\n    return x\n")
    ready.commit_all("another kernel")
    run = ready.kopt("init", CAMPAIGN, *options, "--elsewhere")
    assert run.code == 0, run.text
    manifest = yaml.safe_load((ready.campaign / "manifest.yaml").read_text())
    assert (manifest["target_backend"], manifest["target_lang"]) == (backend, backend)


@pytest.mark.parametrize(("helper", "backend"), [("torch", "TORCH"), ("triton", "TRITON")])
def test_the_files_of_a_folder_show_its_backend(ready: Project, helper: str, backend: str) -> None:
    ready.write("kernels/__init__.py", "")
    ready.write("kernels/README.md", "No source.\n")
    ready.write("kernels/parts/helper.py", f"import {helper}\n")
    ready.commit_all()
    run = ready.kopt("init", CAMPAIGN, "--kernel", "kernels", "--gpu", "H200", "--elsewhere")
    assert run.code == 0 and f"--op kernels, --backend {backend}" in run.out, run.text


def test_a_native_source_in_a_folder_leaves_its_backend_to_the_user(ready: Project) -> None:
    ready.write("kernels/parts/fast.cu", "// No Python shows what builds it.\n")
    ready.commit_all()
    run = ready.kopt("init", CAMPAIGN, "--kernel", "kernels", "--gpu", "H200", "--elsewhere")
    assert run.code == 4 and "--backend is missing" in run.text


def test_settings_are_taken_over_from_another_campaign(fresh: Project) -> None:
    """All but what the old campaign froze; an option on the command line stands above."""
    fresh.edit_manifest(max_iterations=7, env={"TUNE": "1"}, primary_metric="Forward GB/s")
    old = yaml.safe_load((fresh.campaign / "manifest.yaml").read_text())
    fresh.edit_manifest(
        representative_shapes=["doubled rows=2 columns=8", "doubled rows=4 columns=8", "a third"]
    )
    fresh.git("switch", "--quiet", "main")
    run = fresh.kopt("init", "second", "--from", CAMPAIGN, "--max-iterations", "9")
    assert run.code == 0, run.text
    new = yaml.safe_load((fresh.campaign.with_name("second") / "manifest.yaml").read_text())
    own = {
        "max_iterations": 9,
        "git_branch": "optimize/second",
        "created": new["created"],
        "quick_command": "python agent/workspace/second/quick_test_bench.py",
    }
    assert new == {**old, **own, "schema": None}
    assert fresh.git("branch", "--show-current").strip() == "optimize/second"


def test_every_gap_is_listed_at_once(ready: Project) -> None:
    ready.write(KERNEL, "def work(x):\n    return +x\n")
    ready.write("kernels/work.cu", "// not committed\n")
    ready.write(CASES, "def test_nothing():\n    pass\n")
    before = ready.contents()
    words = (
        *("--op", "work", "--backend", "TRITON", "--gpu", "MI300X", "--max-iterations", "120"),
        *("--kernel", KERNEL, "--kernel", "kernels/work.cu", "--kernel", "kernels/absent.py"),
        *("--test", "python 'unbalanced", "--format", "./no-such-prog", "--policy", "mild"),
        *("--benchmark", "NAME=1 not-there --fast", "--env", "NAME"),
    )
    run = ready.kopt("init", CAMPAIGN, *words)
    assert run.code == 4, run.text
    gaps = re.findall(r"^ +- (.+)$", run.text, re.MULTILINE)
    for expected in (
        rf"commit the kernel first, {KERNEL}",
        r"kernels/work\.cu",
        r"rebuild_command",
        r"test_command: .*unbalanced.* cannot be split",
        r"no test marked kopt",
        r"kernel 'kernels/absent.py' does not exist",
        r"--max-iterations is 120 .*119",
        r"no gfx942 here.*--elsewhere.*--gpu cpu",
        r"format_command: the program './no-such-prog' is not on PATH",
        r"benchmark_command: the program 'not-there' is not on PATH",
        r"policy 'mild' is unknown .*primus",
        r"--env: 'NAME' sets nothing .*NAME=VALUE",
    ):
        assert any(re.search(expected, gap) for gap in gaps), (expected, gaps)
    assert ready.contents() == before
    assert ready.git("branch", "--show-current").strip() == "main"


def test_a_round_runs_on_the_campaigns_device_only(fresh: Project) -> None:
    """However the campaign was set up: on this machine, or elsewhere for another one."""
    fresh.edit_manifest(target_gpu="gfx942")
    before = fresh.contents()
    run = fresh.ask(1)
    assert run.code == 4, run.text
    assert "target_gpu: the campaign is for gfx942, here is cpu" in run.refusal
    assert fresh.contents() == before and not fresh.was_measured


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("../x", *GIVEN, "--kernel", KERNEL), ("'../x'", "letters, digits")),
        ((CAMPAIGN, *GIVEN, "--kernel", "../x.py"), ("../x.py", "--kernel|kernel_source")),
        (
            (CAMPAIGN, *GIVEN, "--kernel", "/etc/hostname"),
            ("/etc/hostname", "relative to the project root"),
        ),
        (
            (CAMPAIGN, "--kernel", KERNEL, "--backend", "CUTE", "--gpu", "H2000"),
            ("--lang is missing", "--gpu .*H2000.*sm_90"),
        ),
        (
            (CAMPAIGN, *GIVEN, "--kernel", KERNEL, "--max-iterations", "120", "--target", "500"),
            ("--max-iterations is 120 .*119", "--target is '500' .*TFLOPS"),
        ),
        (
            (CAMPAIGN, *GIVEN, "--kernel", KERNEL, "--env", "BACKEND=<target_backend>"),
            ("<target_backend>",),
        ),
        (("new", "--from", "nowhere"), ("'nowhere'", "does not exist")),
        ((CAMPAIGN, *GIVEN, "--kernel", KERNEL, "--policy", "mild"), ("'mild'", "primus")),
    ],
    ids=["name", "above", "absolute", "fields", "numbers", "placeholder", "from", "policy"],
)
def test_what_cannot_be_used_is_named(
    ready: Project, words: tuple[str, ...], parts: tuple[str, ...]
) -> None:
    before = ready.contents()
    run = ready.kopt("init", *words)
    assert run.code == 4, run.text
    for part in parts:
        assert re.search(part, run.text), run.text
    assert ready.contents() == before


def test_a_project_skill_that_is_not_there_is_a_gap(ready: Project) -> None:
    run = ready.kopt("init", CAMPAIGN, *GIVEN, "--kernel", KERNEL, "--project-skill", "none.md")
    assert run.code == 4 and "project_skill: there is no file 'none.md'" in run.refusal


@pytest.mark.parametrize("options", [(), ("--gpu", "cpu")])
def test_a_triton_kernel_needs_a_gpu_or_another_machine(
    ready: Project, options: tuple[str, ...]
) -> None:
    ready.write(KERNEL, "import triton\n\n\ndef work(x):\n    return x\n")
    ready.commit_all("a kernel in Triton")
    run = ready.kopt("init", CAMPAIGN, *options, CUDA_VISIBLE_DEVICES="")
    assert run.code == 4
    assert "Triton's interpreter runs these kernels" in run.text
    assert "--elsewhere" in run.text
