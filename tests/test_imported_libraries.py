"""Which libraries a project's files import, by their sources."""

from __future__ import annotations

from pathlib import Path

from pytest_kopt.imports import Finder

FILES = {
    "tests/test_norm.py": "import kernels.norm\nfrom kernels import softmax\nimport torch\n",
    "kernels/__init__.py": "import packaging.version\n",
    "kernels/norm.py": """
from liger_kernel.ops.utils import calculate_settings
from .tools import chunks
try:
    import triton
except ImportError:
    triton = None

def norm(x):
    import only_when_called
""",
    "kernels/softmax.py": "from pkg.deep import one\n",
    "kernels/tools.py": "from ..kernels.other import more\n",
    "kernels/other.py": "class A:\n    import numpy as np\n",
    "kernels/unused.py": "import never_reached\n",
    "src/pkg/__init__.py": "",
    "src/pkg/deep.py": "import json, this is no Python\n",
}


def test_libraries_are_those_that_files_reach_outside_the_project(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    starts = [tmp_path / "tests/test_norm.py", tmp_path / "tests/gone.py"]
    finder = Finder(tmp_path, [tmp_path, tmp_path / "src"])
    libraries, files = finder.libraries_and_files(starts)
    assert libraries == {
        *("torch", "triton", "numpy", "packaging.version", "liger_kernel.ops.utils"),
    }
    assert files - {*starts} == {
        tmp_path / name for name in FILES if "kernels" in name and "unused" not in name
    } | {tmp_path / "src/pkg/__init__.py", tmp_path / "src/pkg/deep.py"}
