from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.campaign.layout import Layout, campaigns, check_name, find
from pytest_kopt.campaign.manifest import (
    RETIRED,
    FrozenSchema,
    Manifest,
    PerformanceTarget,
    architecture,
    check_kernel_paths,
    parse_target,
)
from pytest_kopt.documents import validate
from pytest_kopt.errors import BadInput
from tests.builders import manifest_document

PLATFORMS = {
    "H20": "sm_90",
    "H100": "sm_90",
    "H200": "sm_90",
    "B200": "sm_100",
    "MI300X": "gfx942",
    "MI308X": "gfx942",
    "MI325X": "gfx942",
    "MI350X": "gfx950",
    "MI355X": "gfx950",
}
LANGUAGES = {
    "TRITON": "TRITON",
    "CK": "HIP",
    "HIPBLASLT": "HIP",
    "TURBO": "HIP",
    "CUDA": "CUDA",
    "HIP": "HIP",
    "CUTEDSL": "CUTEDSL",
    "FLYDSL": "FLYDSL",
    "TORCH": "TORCH",
}


def read(**changes: Any) -> Manifest:
    return validate(Manifest, manifest_document(**changes), "manifest.yaml")


def refusal_of(document: dict[str, Any]) -> str:
    with pytest.raises(BadInput) as refusal:
        validate(Manifest, document, "manifest.yaml")
    assert str(refusal.value).startswith("manifest.yaml: ")
    return str(refusal.value)


def leaves(value: Any) -> list[Any]:
    """Return the scalars in a value, or the empty container that it is."""
    inner = value.values() if isinstance(value, dict) else value
    if not isinstance(value, dict | list) or not value:
        return [value]
    return [leaf for item in inner for leaf in leaves(item)]


@pytest.mark.parametrize("key", RETIRED)
def test_a_key_of_an_earlier_release_is_left_out(key: str) -> None:
    assert read(**{key: {"of": "that release"}}) == read()


def test_what_is_not_given_has_its_default() -> None:
    found = read()
    assert found.model_dump(exclude=set(manifest_document())) == {
        "target_lang": "TRITON",
        "target_model": "H200",
        "execution_mode": "repo",
        "project_skill": None,
        "performance_target": None,
        "primary_metric": None,
        "target_shapes": "all",
        "tests": "",
        "test_command": None,
        "benchmark_command": None,
        "e2e_command": None,
        "quick_command": None,
        "representative_shapes": None,
        "git_commit": True,
        "git_branch": "none",
        "max_iterations": None,
        "csv_schema": None,
        "core_shapes": "all",
        "policy": "primus",
        "engine": "auto",
        "operating_point": "boost",
        "classes": [],
        "env": {},
        "rebuild_command": None,
        "format_command": None,
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("target_op", "grouped-gemm_fp8.v2"),
        ("target_backend", "CuteDSL"),
        ("target_gpu", "gfx942"),
        ("target_gpu", "cpu"),
        ("project_skill", "skills/turbo.md"),
        ("performance_target", ">60% peak efficiency"),
        ("primary_metric", "Forward TFLOPS"),
        ("target_shapes", ["small", "large"]),
        ("kernel_source", ["a.py", "csrc/"]),
        ("tests", "tests/test_a.py -k softmax"),
        ("test_command", "pytest -q"),
        ("benchmark_command", "FOO=1 python bench.py"),
        ("e2e_command", "python step.py"),
        ("quick_command", "python quick_test_bench.py"),
        ("representative_shapes", ["small", "middle", "large"]),
        ("git_commit", False),
        ("git_branch", "auto"),
        ("git_branch", "optimize/softmax_v1.2"),
        ("max_iterations", None),
        ("max_iterations", 1),
        ("max_iterations", 119),
        ("core_shapes", ["big"]),
        ("policy", "kernel-opt"),
        ("engine", "do_bench"),
        ("operating_point", "sustained"),
        ("classes", ["decode", "prefill"]),
        ("env", {"PRIMUS_TURBO_GEMM_BACKEND": "TRITON", "EMPTY": ""}),
        ("rebuild_command", "make -j"),
        ("format_command", "ruff format kernels"),
    ],
)
def test_legal_values_are_taken(key: str, value: Any) -> None:
    changes = {"target_lang": "TRITON", key: value}
    assert read(**changes).model_dump(mode="json")[key] == value


@pytest.mark.parametrize(
    ("key", "value", "legal"),
    [
        ("target_op", "", "at least 1 character"),
        ("target_op", "soft max", "text that matches"),
        ("target_op", 7, "(allowed: text)"),
        ("target_op", "../softmax", "text that matches"),
        ("target_op", "..", ""),
        ("target_backend", "<target_backend>", "text that matches"),
        ("target_backend", None, "(allowed: text)"),
        ("target_backend", "..", ""),
        ("target_lang", "C + +", "text that matches"),
        ("target_gpu", "GTX1080", "A100, A100_PCIE, A100_40GB, A30, A10"),
        ("target_gpu", "sm90", "sm_90"),
        ("execution_mode", "docker", "'repo' or 'workspace'"),
        ("project_skill", "", "at least 1 character"),
        ("performance_target", "fast", ">500 TFLOPS"),
        ("performance_target", 500, "(allowed: text)"),
        ("primary_metric", "", "at least 1 character"),
        ("target_shapes", "some", "'all'"),
        ("target_shapes", [[1, 2, 3]], "text"),
        ("target_shapes", [], "at least 1 item"),
        ("target_shapes", ["a", "a"], "different labels"),
        ("kernel_source", [], "at least 1 item"),
        ("kernel_source", [""], "at least 1 character"),
        ("kernel_source", ["/etc/passwd"], "relative to the project root"),
        ("kernel_source", ["../other/kernel.py"], "without '..'"),
        ("kernel_source", ["kernels/" + "k" * 300 + ".py"], "255 bytes a name"),
        ("kernel_source", ["k/" * 1200 + "k.py"], "2000 in all"),
        ("kernel_source", ["a/../../kernel.py"], "without '..'"),
        ("kernel_source", ["a\0.py"], ""),
        ("tests", None, "(allowed: text)"),
        ("test_command", "", "at least 1 character"),
        ("benchmark_command", ["python", "b.py"], "(allowed: text)"),
        ("quick_command", 1, "(allowed: text)"),
        ("representative_shapes", "all", "list"),
        ("representative_shapes", ["a", "b"], "at least 3"),
        ("representative_shapes", ["a", "b", "a"], "different labels"),
        ("representative_shapes", list("abcdef"), "at most 5"),
        ("git_commit", "perhaps", "true or false"),
        ("git_branch", "-f", "branch name"),
        ("git_branch", "a..b", "branch name"),
        ("git_branch", "a b", "branch name"),
        ("git_branch", "a//b", "branch name"),
        ("git_branch", "a/", "branch name"),
        ("git_branch", "a@{1}", "branch name"),
        ("git_branch", "", "at least 1 character"),
        ("max_iterations", 0, "at least 1"),
        ("max_iterations", 120, "at most 119"),
        ("max_iterations", -1, "at least 1"),
        ("max_iterations", True, "a whole number"),
        ("max_iterations", "10", "a whole number"),
        ("max_iterations", 10.0, "a whole number"),
        ("created", "yesterday", "YYYY-MM-DD HH:MM"),
        ("created", "2026-11-20", "YYYY-MM-DD HH:MM"),
        ("created", "2026-11-20T10:15", "YYYY-MM-DD HH:MM"),
        ("created", "2026-13-45 25:61", "YYYY-MM-DD HH:MM"),
        ("schema", {"header": "label", "sha256": "abc"}, "text that matches"),
        ("schema", {"header": ""}, "missing"),
        ("core_shapes", "most", "'all'"),
        ("core_shapes", [], "at least 1 item"),
        ("core_shapes", ["a", "a"], "different labels"),
        ("policy", "", "at least 1 character"),
        ("engine", "cuda", "'auto', 'graph', 'events', 'wall' or 'do_bench'"),
        ("classes", "decode", "list"),
        ("classes", [1], "(allowed: text)"),
        ("classes", ["heads", "heads"], "each once"),
        ("env", "A=1", "a mapping"),
        ("env", {"1A": "x"}, "names of environment variables"),
        ("env", {"A B": "x"}, "names of environment variables"),
        ("env", {"A": "x\0y"}, "NUL"),
        ("env", {"A": None}, ""),
        ("env", {"A": ["x"]}, ""),
        ("rebuild_command", "", "at least 1 character"),
        ("format_command", {}, "(allowed: text)"),
    ],
)
def test_an_illegal_value_is_refused_with_key_value_and_what_is_legal(
    key: str, value: Any, legal: str
) -> None:
    message = refusal_of(manifest_document(**{"target_lang": "TRITON", key: value}))
    assert key in message
    assert legal in message
    assert any(repr(leaf) in message for leaf in leaves(value))


@pytest.mark.parametrize("key", ["target_op", "target_backend", "target_gpu", "kernel_source"])
def test_a_key_that_has_no_default_is_asked_for(key: str) -> None:
    document = manifest_document()
    del document[key]
    assert f"key '{key}' is missing" in refusal_of(document)


def test_an_unknown_key_is_refused_with_the_keys_as_the_file_spells_them() -> None:
    message = refusal_of(manifest_document(max_iteration=3))
    assert "key 'max_iteration' is unknown" in message
    known = message.partition("allowed: ")[2].rstrip(")").split(", ")
    assert {"target_op", "max_iterations", "schema"} <= set(known)
    assert "csv_schema" not in known


def test_every_offending_key_is_named_at_once() -> None:
    message = refusal_of(manifest_document(max_iterations=0, engine="x", target_gpu="?"))
    assert all(key in message for key in ("max_iterations", "engine", "target_gpu"))


def test_one_kernel_may_be_given_without_a_list() -> None:
    assert read(kernel_source="kernels/a.py").kernel_source == ["kernels/a.py"]


@pytest.mark.parametrize(("backend", "language"), LANGUAGES.items())
def test_the_language_follows_the_backend(backend: str, language: str) -> None:
    assert read(target_backend=backend).target_lang == language


def test_a_backend_without_a_language_of_its_own_needs_one() -> None:
    document = manifest_document(target_backend="CUTE")
    assert "key 'target_lang' is missing" in refusal_of(document)
    assert read(target_backend="CUTE", target_lang="CUTEDSL").target_lang == "CUTEDSL"


@pytest.mark.parametrize(("platform", "arch"), PLATFORMS.items())
def test_each_platform_maps_to_its_architecture(platform: str, arch: str) -> None:
    assert architecture(platform) == arch
    assert architecture(platform.lower()) == arch
    for known in (read(target_gpu=platform), read(target_gpu=arch, target_model=platform)):
        assert (known.target_gpu, known.target_model) == (arch, platform)
    assert read(target_gpu=platform.lower()).target_model == platform
    assert read(target_gpu=arch).target_model is None


@pytest.mark.parametrize("name", ["h100 pcie", "H100-PCIe", "H100_PCIE", "H100PCIe"])
def test_a_model_may_be_written_as_its_vendor_writes_it(name: str) -> None:
    manifest = read(target_gpu=name)
    assert (manifest.target_gpu, manifest.target_model) == ("sm_90", "H100_PCIE")


def test_a_model_of_another_architecture_is_refused() -> None:
    message = refusal_of(manifest_document(target_gpu="gfx942", target_model="H200"))
    assert "key 'target_model' is 'H200' (allowed: MI300X or MI308X or MI325X or null)" in message


@pytest.mark.parametrize(
    ("text", "target"),
    [
        (">500 TFLOPS", PerformanceTarget(True, 500.0, "TFLOPS")),
        ("> 3.25 TB/s", PerformanceTarget(True, 3.25, "TB/s")),
        (">900 GB/s", PerformanceTarget(True, 900.0, "GB/s")),
        (">60% peak efficiency", PerformanceTarget(True, 60.0, "% peak efficiency")),
        ("<12 us", PerformanceTarget(False, 12.0, "us")),
        ("<0.5ms", PerformanceTarget(False, 0.5, "ms")),
    ],
)
def test_a_performance_target_is_parsed(text: str, target: PerformanceTarget) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize(
    "text", ["500 TFLOPS", "<500 TFLOPS", ">12 us", ">x TFLOPS", ">5 GHz", "", ">-1 TFLOPS"]
)
def test_a_performance_target_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="TFLOPS"):
        parse_target(text)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("env", {"BACKEND": "<target_backend>"}),
        ("tests", "tests/test_<target_op>.py"),
        ("test_command", "pytest <test_file>"),
        ("benchmark_command", "python <campaign_dir>/bench.py"),
        ("rebuild_command", "make <target>"),
        ("format_command", "ruff format <kernel_source>"),
    ],
)
def test_an_unfilled_placeholder_is_refused_where_it_stands(key: str, value: Any) -> None:
    message = refusal_of(manifest_document(**{key: value}))
    assert key in message and "placeholder" in message
    assert "key 'document'" not in message


def test_a_comparison_in_a_command_is_no_placeholder() -> None:
    command = "python -c 'assert 1 < 2 and 3 > 2'"
    assert read(test_command=command).test_command == command


@pytest.mark.parametrize("text", ["1", "true", "2.5", "12.10", "010", "1:30", "yes"])
def test_an_environment_value_is_set_as_written_or_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "manifest.yaml"
    manifests.save(path, read(env={"VALUE": "placed"}))
    path.write_text(path.read_text().replace("placed", text))
    outcome: dict[str, str] | str
    try:
        outcome = manifests.load(path).env
    except BadInput as refusal:
        outcome = str(refusal)
    refused = isinstance(outcome, str) and "env.VALUE" in outcome
    assert refused or outcome == {"VALUE": text}


def test_what_is_saved_loads_as_the_same_manifest(tmp_path: Path) -> None:
    frozen = FrozenSchema(header="label,M,Check,Time (ms)", sha256="a" * 64)
    written = read(
        env={"A": "010", "B": "yes"}, tests="-k 'a or b'", csv_schema=frozen, max_iterations=7
    )
    path = tmp_path / "campaign" / "manifest.yaml"
    manifests.save(path, written)
    assert manifests.load(path) == written
    assert "schema:" in path.read_text()


def test_a_manifest_is_named_by_its_path_when_it_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "manifest.yaml"
    path.write_text("target_op: softmax\n")
    with pytest.raises(BadInput, match=str(path)):
        manifests.load(path)


def test_a_kernel_has_to_exist_inside_the_repository(tmp_path: Path) -> None:
    repository, outside = tmp_path / "repo", tmp_path / "outside.py"
    (repository / "kernels").mkdir(parents=True)
    outside.touch()
    (repository / "kernels" / "link.py").symlink_to(outside)
    (repository / "kernels" / "own.py").touch()
    (repository / "kernels" / "alias.py").symlink_to("own.py")

    def check(source: str) -> None:
        check_kernel_paths(read(kernel_source=[source]).kernel_source, repository, repository)

    check("kernels/own.py")
    check("kernels/alias.py")
    with pytest.raises(BadInput, match=r"'kernels/none.py' does not exist"):
        check("kernels/none.py")
    with pytest.raises(BadInput, match=r"'kernels/link.py' lies outside the repository"):
        check("kernels/link.py")
    with pytest.raises(BadInput, match=r"'kernels/link.py' lies outside the repository"):
        check("kernels")
    (repository / "kernels" / "link.py").unlink()
    check("kernels")
    (repository / ".git").mkdir()
    (repository / ".git" / "config").touch()
    (repository / "kernels" / "config").symlink_to("../.git/config")
    for source in (".git/config", "kernels/config", "kernels", ".git"):
        with pytest.raises(BadInput, match="lies outside the repository"):
            check(source)


@pytest.mark.parametrize("name", ["softmax_triton_sm90_20261120", "a", "0.1", "A-b_c.d", "x" * 128])
def test_any_valid_directory_name_names_a_campaign(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "a\\b", "../a", "a..b", "/a", ".hidden", "-x", "a b", "a\n", "x" * 129],
)
def test_a_name_that_could_leave_the_workspace_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="starting with a letter or digit"):
        check_name(name)


def test_a_campaign_is_found_by_its_manifest(tmp_path: Path) -> None:
    for name in ("b", "a"):
        manifests.save(Layout(tmp_path / name).manifest, read())
    (tmp_path / "no-campaign").mkdir()
    assert campaigns(tmp_path) == ["a", "b"]
    assert find(tmp_path, "a").directory == tmp_path / "a"
    with pytest.raises(BadInput, match=r"^campaign: 'c' does not exist .*allowed: a, b"):
        find(tmp_path, "c")


def test_the_layout_of_a_campaign_is_the_contracts() -> None:
    layout = Layout(Path("workspace/name"))
    places = [
        layout.manifest,
        layout.ledger,
        layout.optimize_log,
        layout.trend,
        layout.profiles,
        layout.summary(3),
        layout.verdict(3),
        layout.snapshot(3),
        layout.artifacts(3),
    ]
    assert [place.relative_to("workspace/name").as_posix() for place in places] == [
        "manifest.yaml",
        "ledger.jsonl",
        "logs/optimize.md",
        "logs/performance_trend.md",
        "profiles",
        "rounds/round-3/summary.md",
        "rounds/round-3/verdict.json",
        "rounds/round-3/kernel_snapshot",
        "rounds/round-3/artifacts",
    ]
