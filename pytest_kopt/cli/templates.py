"""`kopt init --template`: copies a template, and the settings without which it would not run."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from packaging.requirements import Requirement

from pytest_kopt.bundled import PACKAGE, SKILL, bundled
from pytest_kopt.errors import BadInput
from pytest_kopt.options.project import Project
from pytest_kopt.trials.harness import pytest_section
from pytest_kopt.versions.tree import write

_PACKAGE = "kernels/__init__.py"
#: Files of a template by their path in conftest_templates/; a pair names another place for it.
#: Those of the skill lie in the package, by the path that agents look at.
TEMPLATES: dict[str, tuple[str | tuple[str, str], ...]] = {
    **{
        name: (_PACKAGE, f"kernels/{name}.py", f"tests/test_{name}.py")
        for name in (
            *("gemm_bf16", "gemm_fp8", "grouped_gemm", "attention"),
            *("rmsnorm", "cross_entropy", "swiglu"),
        )
    },
    "determinism": (_PACKAGE, "kernels/rmsnorm.py", "tests/test_determinism.py"),
    "multigpu": (_PACKAGE, "kernels/row_parallel.py", "tests/test_multigpu.py"),
    "conftest": ("conftest.py",),
    "manifest": ("manifest.yaml",),
    "workflow": (("workflow/kopt.yml", ".github/workflows/kopt.yml"),),
    "skill": tuple(
        path.relative_to(PACKAGE).as_posix() for path in sorted((PACKAGE / SKILL).rglob("*.*"))
    ),
}
#: Tests of a template import `kernels` from the project's root.
_SETTINGS = """\
[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]
"""
#: Packages of kernels and tests: the first torch that pytest-kopt supports, the first Triton with
#: tensor descriptors.
_REQUIREMENTS = tuple(map(Requirement, ("torch>=2.6", "triton>=3.4")))


def place(name: str, project: Project) -> list[str]:
    """Copy a template, write its settings, and return lines that say what is new or missing.

    BadInput, with no copy, where a file differs from the template's.
    """
    lines = [f"written: {path}" for path in _copied(name, project.root)]
    if _PACKAGE in TEMPLATES[name]:
        lines += _settings(project)
        if missing := [f"'{needed}'" for needed in _REQUIREMENTS if not _installed(needed)]:
            lines.append(f"missing: pip install {' '.join(missing)}")
    if not lines:
        return ["nothing to do: every file is there already"]
    if f"kernels/{name}.py" in TEMPLATES[name]:
        lines.append(
            f"next: pytest --kopt-check-only; then commit, and kopt init --kernel kernels/{name}.py"
        )
    return lines


def _copied(name: str, root: Path) -> list[str]:
    """Copy the files of a template and return those that are new."""
    if name not in TEMPLATES:
        raise BadInput(f"template {name!r} is unknown", where="--template", legal=TEMPLATES)
    source = PACKAGE if name == "skill" else bundled("conftest_templates")
    files = [entry if isinstance(entry, tuple) else (entry, entry) for entry in TEMPLATES[name]]
    content = {target: (source / file).read_bytes() for file, target in files}
    existing = {target for target in content if (root / target).exists()}
    for target in sorted(existing):
        # A package that exists already is as good as ours.
        if target != _PACKAGE and (root / target).read_bytes() != content[target]:
            raise BadInput(f"{target} exists and differs", where="--template", fix="move it away")
    new = {target: content[target] for target in sorted(content.keys() - existing)}
    write(new, root)
    return [*new]


def _settings(project: Project) -> list[str]:
    """Write pytest's settings where there are none; say what is missing where there are."""
    file = project.root / (project.settings or "pyproject.toml")
    section = pytest_section(file)
    if "." in section.get("pythonpath", ()):
        return []
    if section or file.name != "pyproject.toml":
        return [f'missing: pythonpath = ["."] in pytest\'s settings, {file.name}']
    before = file.read_text(encoding="utf-8").rstrip() + "\n\n" if file.exists() else ""
    file.write_text(before + _SETTINGS, encoding="utf-8")
    return [f"written: pytest's settings, at the end of {file.name}"]


def _installed(needed: Requirement) -> bool:
    try:
        return needed.specifier.contains(version(needed.name), prereleases=True)
    except PackageNotFoundError:
        return False
