"""`kopt init --template`: one of conftest_templates/ put into a project."""

from __future__ import annotations

from pathlib import Path

from pytest_kopt.bundled import bundled
from pytest_kopt.errors import BadInput

_PACKAGE = "kernels/__init__.py"
#: Files of a template by their path in conftest_templates/; a pair names another place for it.
TEMPLATES: dict[str, tuple[str | tuple[str, str], ...]] = {
    **{
        name: (_PACKAGE, f"kernels/{name}.py", f"tests/test_{name}.py")
        for name in ("gemm_bf16", "gemm_fp8", "grouped_gemm", "attention", "rmsnorm", "swiglu")
    },
    "determinism": (_PACKAGE, "kernels/rmsnorm.py", "tests/test_determinism.py"),
    "multigpu": (_PACKAGE, "kernels/row_parallel.py", "tests/test_multigpu.py"),
    "conftest": ("conftest.py",),
    "manifest": ("manifest.yaml",),
    "workflow": (("workflow/kopt.yml", ".github/workflows/kopt.yml"),),
    "skill": ("SKILL.md",),
}


def place(name: str, root: Path) -> list[str]:
    """Copy a template into a project and return the paths that are new.

    A file that is there already with the same content is left alone. Raises BadInput, with nothing
    copied, for an unknown name or a file that would be overwritten.
    """
    if name not in TEMPLATES:
        raise BadInput(f"template {name!r} is unknown", where="--template", legal=TEMPLATES)
    source = bundled("conftest_templates")
    files = [item if isinstance(item, tuple) else (item, item) for item in TEMPLATES[name]]
    content = {target: (source / given).read_bytes() for given, target in files}
    taken = {target for target in content if (root / target).exists()}
    for target in sorted(taken):
        # A package that exists already is as good as ours.
        if target != _PACKAGE and (root / target).read_bytes() != content[target]:
            raise BadInput(f"{target} exists and differs", where="--template", legal="move it away")
    for target in content.keys() - taken:
        (root / target).parent.mkdir(parents=True, exist_ok=True)
        (root / target).write_bytes(content[target])
    return sorted(content.keys() - taken)
