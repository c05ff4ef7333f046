"""The audit notes what an author should explain, and refuses nothing."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from pytest_kopt.honesty.audit import audit

CORPUS = Path(__file__).parent / "corpus"
#: What honest kernels of the corpus have that may well be asked about.
ODD = {"heap-inspection", "identity-keyed-cache", "memoised-tensors"}


def noted(code: str, incumbent: str = "") -> set[str]:
    """The names of the notes about a file."""
    before = {"k.py": dedent(incumbent).encode()} if incumbent else {}
    found = audit({"k.py": dedent(code).encode()}, before)
    assert not any(item.rejects for item in found)
    return {item.check for item in found}


CACHES = {
    "id": "kept[id(x)] = torch.exp(x)",
    "pointer": "kept.setdefault(x.data_ptr(), torch.exp(x))",
    "named": "key = (x.data_ptr(), 1)\n    kept[key] = x",
    "compared": "global last\n    if last is not id(x): last = x",
    "version": "kept[id(x), x._version] = x.t()",
}


@pytest.mark.parametrize("name", CACHES)
def test_names_caches_by_identity(name: str) -> None:
    code = f"import torch\nkept = {{}}\nlast = None\ndef f(x):\n    {CACHES[name]}\n    return x\n"
    assert noted(code) == {"identity-keyed-cache"}


@pytest.mark.parametrize(
    "body",
    [
        "kept[x.shape] = torch.empty_like(x)",
        "out = torch.empty_like(x)\n    launch(x.data_ptr(), out.data_ptr())",
        "y = x[id]\n    return y",
        "kept.setdefault((x.shape, x.dtype), torch.empty_like(x))",
        "out = x.new_zeros(9)\n    for i in x.tolist(): out[i] = 1\n    return out",
        "n = x.sum().item()\n    kept[x.shape] = 0\n    return x[n:]",
    ],
)
def test_lets_scratch_by_size_and_pointers_for_a_launch_be(body: str) -> None:
    assert noted(f"import torch\nkept = {{}}\ndef f(x):\n    {body}\n") == set()


@pytest.mark.parametrize(
    ("code", "check"),
    [
        ("import functools\n@functools.lru_cache\ndef f(x): return x.shape", "memoised-tensors"),
        ("import sys as s\ndef f(x): return s._getframe(1)", "stack-inspection"),
        ("from gc import get_objects\ndef f(x): return get_objects()", "heap-inspection"),
        ("import os\nos.environ['PYTEST_ADDOPTS'] = '-x'", "harness-environment"),
        (
            "import os\nif 'KOPT_ENGINE' in os.environ.get('KOPT_X', ''): x = 1",
            "harness-environment",
        ),
        ("import pytest_kopt.cases.running.run_case", "harness-import"),
    ],
)
def test_names_what_an_author_should_explain(code: str, check: str) -> None:
    assert check in noted(code)


def test_what_the_incumbent_does_too_is_not_noted() -> None:
    code = "import torch\nkept = {}\ndef f(x):\n    kept[id(x)] = torch.exp(x)\n"
    assert noted("LIMIT = 8\n" + code, incumbent=code) == set()
    twice = code + "def g(y):\n    kept[id(y)] = torch.sin(y)\n"
    (new,) = audit({"k.py": twice.encode()}, {"k.py": code.encode()})
    assert new.where == "k.py:6"


def test_says_where() -> None:
    (found,) = audit({"a/k.py": b"import sys\n\nx = sys.argv\n"}, {})
    assert (found.where, "`sys.argv`" in found.message) == ("a/k.py:3", True)


@pytest.mark.parametrize("path", sorted(CORPUS.glob("honest/*__*.py")), ids=lambda path: path.stem)
def test_says_little_of_honest_kernels(path: Path) -> None:
    assert noted(path.read_text()) <= ODD


def test_what_is_no_python_has_no_notes() -> None:
    assert (
        audit({"k.py": b"def f(:\n", "k.cu": b"__global__ void k() {}", "j.py": b"\xff"}, {}) == []
    )
