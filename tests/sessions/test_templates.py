"""conftest_templates/: each one runs, on this machine and, where there is one, on a GPU."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from pytest_kopt.bundled import bundled
from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.cli.templates import TEMPLATES
from pytest_kopt.exit_codes import ExitCode

from .project import MASKS, NO_XDIST, SERIAL, TWO_WORKERS, Project
from .sources import SETTINGS

pytest.importorskip("triton")

CASES = ("gemm_bf16", "gemm_fp8", "grouped_gemm", "attention", "rmsnorm", "cross_entropy", "swiglu")
SUITES = ("determinism", "multigpu", "conftest")
#: What the interpreter is through with soonest; the long suite runs every case of all.
SOONEST = "tests/test_rmsnorm.py::test_rmsnorm[6-100]"


def placed(project: Project, *names: str) -> Project:
    project.write("pyproject.toml", SETTINGS)
    for name in names:
        run = project.kopt("init", "--template", name)
        assert run.code == 0, run.text
    return project


def test_cases_pass_in_the_interpreter_with_the_settings_that_come_along(empty: Project) -> None:
    for name in CASES:
        first = empty.kopt("init", "--template", name)
        assert first.code == 0, first.text
        assert ("written: pytest's settings" in first.out) == (name == CASES[0]), first.text
    assert 'pythonpath = ["."]' in empty.read("pyproject.toml")
    words = ("-p", "no:cacheprovider", "--kopt-device", "cpu", "--kopt-check-only")
    run = empty.pytest("-v", *words, SOONEST)
    assert run.code == 0 and "1 passed" in run.out, run.text
    second = empty.kopt("init", "--template", CASES[0])
    assert "nothing to do" in second.out


@pytest.mark.long
def test_every_case_passes_in_the_interpreter(empty: Project) -> None:
    run = placed(empty, *CASES).pytest("-v", "--kopt-device", "cpu")
    assert run.code == 0, run.text
    assert not re.search(r"FAIL|ERROR|SKIPPED", run.out), run.out
    for name in CASES:
        assert f"tests/test_{name}.py" in run.out
    for encoding in ("e4m3fn", "e5m2", "e4m3fnuz", "e5m2fnuz"):
        assert f"float8_{encoding}]" in run.out
    for distribution in ("uniform", "top2_cf1.0", "top1_cf1.25", "one_expert"):
        assert f"[{distribution}]" in run.out


@pytest.mark.gpu
def test_every_template_runs_on_a_gpu_with_real_shapes(empty: Project) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    project = placed(empty, *CASES, *SUITES)
    # Here, unlike in the other sessions, the GPUs are to be seen.
    seen = dict.fromkeys(MASKS, ",".join(map(str, range(torch.cuda.device_count()))))
    for words in ((), ("--deterministic-only",), ("--dist-only",)):
        run = project.pytest("-v", *words, **seen)
        assert run.code == 0, run.text
        assert "interpreter" not in run.out


@pytest.mark.parametrize(
    "words",
    [pytest.param(SERIAL, marks=pytest.mark.long), TWO_WORKERS, NO_XDIST],
    ids=["serial", "n2", "no-xdist"],
)
def test_the_short_spellings_select_the_suites(empty: Project, words: tuple[str, ...]) -> None:
    project = placed(empty, "conftest")
    project.write(
        "tests/test_suites.py",
        "import pytest\n"
        "@pytest.mark.deterministic\ndef test_bits(kopt): pass\n"
        "@pytest.mark.multigpu\ndef test_ring(kopt): pass\n"
        "def test_plain(kopt): pass\n",
    )
    run = project.pytest("-rA", "--deterministic-only", *words)
    assert run.code == 0, run.text
    assert re.findall(r"PASSED \S+::(\w+)", run.out) == ["test_bits"]


SELECTING = """\
import pytest
import torch

import ops


@pytest.fixture
def careless():
    torch.backends.cuda.matmul.allow_fp16_accumulation = True


def double(x):
    return x * 2


def check_nothing_is_selected():
    assert ops.backend == "default"
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_float32_matmul_precision() == "high", "what the session's fixture selected"


@pytest.mark.kopt(schema="memory")
@pytest.mark.parametrize("n", [64, 128])
def test_doubled(kopt, careless, n):
    check_nothing_is_selected()
    ops.select("triton")
    torch.set_float32_matmul_precision("medium")
    kopt(
        double,
        inputs=lambda: (torch.randn(n),),
        reference=lambda x: x.double() * 2,
        dims={"n": n},
        nbytes=8 * n,
    )
    torch.set_default_dtype(torch.float64)


def test_after():
    check_nothing_is_selected()
    assert not torch.backends.cuda.matmul.allow_fp16_accumulation
"""
SELECTED = """

import ops
import torch

BACKENDS = ((lambda: ops.backend, ops.select),)


@pytest.fixture(scope="session", autouse=True)
def precision():
    torch.set_float32_matmul_precision("high")
"""
OPS = """\
backend = "default"


def select(name):
    global backend
    backend = name
"""


def test_a_backend_that_a_test_selects_in_code_is_reset(empty: Project) -> None:
    """The project's own by the template's fixture, torch's by the plugin's."""
    project = placed(empty, "conftest")
    project.write("conftest.py", project.read("conftest.py") + SELECTED)
    project.write("ops.py", OPS)
    project.write("tests/test_selecting.py", SELECTING)
    run = project.pytest()
    assert run.code == 0 and "3 passed" in run.out, run.text


def test_asking_for_both_suites_is_a_usage_error(empty: Project) -> None:
    run = placed(empty, "conftest").refuse("--deterministic-only", "--dist-only")
    assert run.code == ExitCode.USAGE
    assert "exclude each other" in run.refusal


@pytest.mark.long
def test_the_suites_run_alone(empty: Project) -> None:
    project = placed(empty, "determinism", "multigpu", "conftest")
    for option, passed in (("--deterministic-only", 2), ("--dist-only", 1)):
        run = project.pytest(option)
        assert run.code == 0, run.text
        assert f"{passed} passed" in run.out


def test_every_worker_gets_a_gpu_of_the_callers_mask(tmp_path: Path) -> None:
    """One GPU a worker, by the caller's own names, and no GPU where there is none."""
    namespace: dict[str, object] = {}
    source = bundled("conftest_templates") / "conftest.py"
    exec(source.read_text(), namespace)
    visible = namespace["visible_gpus"]
    assert callable(visible)
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidia1").touch()
    (tmp_path / "nvidiactl").touch()
    nodes = tmp_path / "class/kfd/kfd/topology/nodes"
    for node, gpu in (("0", "0"), ("1", "4660"), ("2", "4661")):
        (nodes / node).mkdir(parents=True)
        (nodes / node / "gpu_id").write_text(gpu + "\n")
    none = tmp_path / "none"
    assert visible({}, tmp_path, none) == ("CUDA_VISIBLE_DEVICES", ["0", "1"])
    assert visible({}, none, tmp_path) == ("HIP_VISIBLE_DEVICES", ["0", "1"])
    assert visible({"CUDA_VISIBLE_DEVICES": "3, GPU-a"}, tmp_path, none) == (
        "CUDA_VISIBLE_DEVICES",
        ["3", "GPU-a"],
    )
    assert visible({}, none, none)[1] == []


def test_a_template_never_overwrites(empty: Project) -> None:
    project = placed(empty, "rmsnorm")
    project.write("kernels/rmsnorm.py", "mine = 1\n")
    before = project.contents()
    run = project.kopt("init", "--template", "determinism")
    assert run.code == ExitCode.USAGE
    assert "kernels/rmsnorm.py" in run.refusal
    assert project.contents() == before
    unknown = project.kopt("init", "--template", "nothing")
    assert unknown.code == ExitCode.USAGE
    assert "gemm_fp8" in unknown.refusal


def test_a_template_leaves_settings_that_are_there(empty: Project) -> None:
    mine = "[project]\nname = 'mine'\n\n[tool.pytest.ini_options]\ntestpaths = ['tests']\n"
    empty.write("pyproject.toml", mine)
    run = empty.kopt("init", "--template", "rmsnorm")
    assert "missing: pythonpath" in run.out, run.text
    assert empty.read("pyproject.toml") == mine


def test_every_file_belongs_to_a_template() -> None:
    """What lies in the directory can be put in place, and nothing else is promised."""
    directory = bundled("conftest_templates")
    known = {
        item[0] if isinstance(item, tuple) else item
        for name, files in TEMPLATES.items()
        if name != "skill"
        for item in files
    }
    found = {
        path.relative_to(directory).as_posix()
        for path in directory.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert found == known | {"README.md"}
    listed = set(re.findall(r"`(\w+)`", (directory / "README.md").read_text()))
    assert set(TEMPLATES) <= listed


def test_the_manifest_is_one_that_kopt_reads() -> None:
    manifest = manifests.load(bundled("conftest_templates") / "manifest.yaml")
    document = yaml.safe_load((bundled("conftest_templates") / "manifest.yaml").read_text())
    fields = {field.alias or name for name, field in manifests.Manifest.model_fields.items()}
    assert set(document) == fields - {"schema"}, "every key is explained but the frozen schema"
    assert manifest.kernel_source == ["kernels/gemm_bf16.py"]


def test_the_workflow_keeps_the_writing_token_away_from_foreign_code() -> None:
    text = (bundled("conftest_templates") / "workflow" / "kopt.yml").read_text()
    document = yaml.safe_load(text)
    assert document["permissions"] == {"contents": "read"}
    jobs = document["jobs"]
    writing = {name for name, job in jobs.items() if "write" in str(job.get("permissions"))}
    assert writing == {"comment"}
    assert "checkout" not in str(jobs["comment"]) and "pytest" not in str(jobs["comment"])
    for job in jobs.values():
        for step in job["steps"]:
            assert "${{" not in step.get("run", ""), (
                "expressions go through env, never into a shell"
            )
