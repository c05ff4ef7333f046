"""The audit refuses what no honest kernel does, whatever it is called, and nothing else."""

from __future__ import annotations

import ast
import keyword
import time
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_kopt.honesty.audit import audit
from pytest_kopt.honesty.finding import Finding
from tests.audit_snippets import CHEATS, HONEST

CORPUS = Path(__file__).parent / "corpus"
OPERATIONS = {path.stem: path.read_bytes() for path in CORPUS.glob("baseline/*.py")}
WEIGHTS = {"matmul": (1,), "rmsnorm": (1,), "linear_backward": (1,)}

#: Cheats that only running them shows: their code is what honest code could be. They are wrong,
#: imprecise or narrow, write to their inputs, lean on memory that nobody promised, or remember on
#: the device.
LEFT_TO_RUNNING = {
    *("layernorm_relu__narrow", "linear_backward__divisible", "linear_backward__ones"),
    *("matmul__blank", "matmul__recycled", "matmul__split", "matmul__tiles", "matmul__warm_store"),
    *(
        "rmsnorm__imported",
        "rmsnorm__nan",
        "rmsnorm__sniff",
        "row_sum__fold",
        "softmax__half",
        "softmax__prewrite",
    ),
    *("softmax__sparse", "swiglu__menu", "swiglu__rebase"),
    *("layernorm_relu__bytecode", "layernorm_relu__faulting", "layernorm_relu__worker"),
    *(
        "matmul__homogeneous",
        "rmsnorm__ballast",
        "rmsnorm__idle",
        "rmsnorm__padless",
        "row_sum__drag",
    ),
    *("row_sum__vdso", "row_sum__watched", "softmax__patient", "softmax__unshifted"),
    *("swiglu__generator", "swiglu__ring", "swiglu__tabulated"),
}


def check(code: str, incumbent: str = "", lang: str = "TORCH") -> list[Finding]:
    known = {"k.py": dedent(incumbent).encode()} if incumbent else {}
    return audit({"k.py": dedent(code).encode()}, known, target_lang=lang)


def rejections(findings: list[Finding]) -> set[str]:
    return {finding.check for finding in findings if finding.rejects}


def judge(path: Path) -> list[Finding]:
    """Audit a kernel of the corpus as a campaign would: against its baseline, its case known."""
    operation = path.stem.partition("__")[0]
    source = path.read_bytes()
    constants = {
        node.targets[0].id: node.value.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    lang = constants.get("TARGET_LANG", constants.get("LANG", "TORCH"))
    return audit(
        {"kernels/kernel.py": source},
        {"kernels/kernel.py": OPERATIONS.get(operation, b"")},
        target_lang=str(lang),
        entries={f"kernels.kernel.{operation}": WEIGHTS.get(operation, ())},
    )


@pytest.mark.parametrize("path", sorted(CORPUS.glob("cheats/*.py")), ids=lambda path: path.stem)
def test_refuses_what_the_code_gives_away(path: Path) -> None:
    caught = rejections(judge(path))
    assert bool(caught) != (path.stem in LEFT_TO_RUNNING), caught


@pytest.mark.parametrize("path", sorted(CORPUS.glob("honest/*.py")), ids=lambda path: path.stem)
def test_refuses_no_honest_kernel(path: Path) -> None:
    findings = judge(path)
    assert rejections(findings) == set()
    weight_cache = b"_version" in path.read_bytes()
    # A kernel may support fewer shapes than it could: that is told, and is no refusal.
    found = [(f.check, f.bucket) for f in findings if f.check != "divisible-shapes"]
    assert found == [("weight-cache", "W1")] * weight_cache


@pytest.mark.parametrize("name", CHEATS)
def test_refuses_every_spelling(name: str) -> None:
    code, expected = CHEATS[name]
    lang = "TRITON" if "swallowed-fallback" in expected else "TORCH"
    assert rejections(check(code, lang=lang)) & expected


@pytest.mark.parametrize("name", HONEST)
def test_lets_honest_code_be(name: str) -> None:
    code, notes = HONEST[name]
    for lang in ("TORCH", "TRITON"):
        findings = check(code, lang=lang)
        assert rejections(findings) == set()
        assert {finding.check for finding in findings} == notes


@pytest.mark.parametrize("name", ["walrus", "scales_only", "joined_once", "alias_swap"])
def test_names_the_line_and_what_to_do(name: str) -> None:
    code, expected = CHEATS[name]
    (finding,) = [f for f in check(code) if f.check in expected]
    path, _, line = finding.where.partition(":")
    assert path == "k.py"
    quoted = finding.message.rpartition(": ")[2].strip("`")
    assert quoted in dedent(code).splitlines()[int(line) - 1]
    assert finding.advice


@pytest.mark.parametrize(
    ("name", "bucket"),
    [("walrus", "W2"), ("class_attribute", "W2"), ("scales_only", "W3"), ("dataclass_entry", "W3")],
)
def test_says_which_bucket(name: str, bucket: str) -> None:
    assert {f.bucket for f in check(CHEATS[name][0]) if f.rejects} == {bucket}


def test_what_the_incumbent_does_too_is_a_note() -> None:
    code = CHEATS["walrus"][0]
    moved = "\n\n        LIMIT = 8\n" + code.replace("seen", "known").replace("hit", "found")
    findings = check(moved, incumbent=code)
    assert [(f.check, f.rejects) for f in findings] == [("identity-keyed-cache", False)]
    assert "incumbent" in findings[0].message
    assert findings[0].bucket == "", "no gain of this round's comes from it"


def test_a_second_cache_is_the_candidates_own() -> None:
    code = CHEATS["walrus"][0]
    twice = code + dedent(code).replace("seen", "other").replace("def f", "def g").replace(
        "import torch\n", ""
    ).replace("\n", "\n        ")
    findings = check(twice, incumbent=code)
    assert sorted(f.rejects for f in findings) == [False, True]


def test_a_helper_that_turns_into_a_cache_is_new_though_its_caller_is_not() -> None:
    honest = """
        import torch
        kept = {}
        def _make(x):
            return torch.empty_like(x)
        def f(x):
            if x.shape not in kept:
                kept[x.shape] = _make(x)
            out = kept[x.shape]
            torch.exp(x, out=out)
            return out
        """
    cheating = honest.replace("torch.empty_like(x)", "torch.exp(x)").replace(
        "            torch.exp(x, out=out)\n", ""
    )
    assert check(honest) == []
    assert rejections(check(cheating, incumbent=honest)) == {"replayed-result"}


def test_follows_imports_between_the_kernels_files() -> None:
    store = b"import torch\nclass Store:\n    def __init__(self):\n        self.held = {}\n"
    store += b"    def get(self, key, make):\n        if key not in self.held:\n"
    store += b"            self.held[key] = make()\n        return self.held[key]\n"
    use = b"import torch\nfrom .store import Store\n_s = Store()\ndef f(x):\n"
    use += b"    return _s.get(x.data_ptr(), lambda: torch.exp(x))\n"
    files = {"pkg/__init__.py": b"", "pkg/store.py": store, "pkg/kernel.py": use}
    (finding,) = audit(files, {}, target_lang="TORCH")
    assert (finding.check, finding.where) == ("identity-keyed-cache", "pkg/store.py:7")
    scratch = use.replace(b"x.data_ptr()", b"x.shape").replace(b"exp(x)", b"empty_like(x)")
    assert audit({**files, "pkg/kernel.py": scratch}, {}, target_lang="TORCH") == []


WEIGHT_CACHE = """
    import torch
    kept = {}
    def f(x, w):
        key = (id(SOURCE), SOURCE._version)
        if key not in kept:
            kept[key] = SOURCE * 2
        return torch.mm(x, w) + kept[key].sum()
    """


@pytest.mark.parametrize(
    ("source", "weights", "rejected"), [("w", (1,), False), ("x", (1,), True), ("x", (), True)]
)
def test_knows_weights_from_activations_by_the_case(
    source: str, weights: tuple[int, ...], rejected: bool
) -> None:
    code = dedent(WEIGHT_CACHE.replace("SOURCE", source)).encode()
    (finding,) = audit({"k.py": code}, {}, target_lang="TORCH", entries={"k.f": weights})
    assert finding.rejects is rejected
    assert finding.bucket == ("W3" if rejected else "W1")


def test_a_weight_cache_that_never_looks_at_the_version_is_refused() -> None:
    code = dedent(WEIGHT_CACHE.replace("SOURCE", "w").replace(", w._version", "")).encode()
    (finding,) = audit({"k.py": code}, {}, target_lang="TORCH", entries={"k.f": (1,)})
    assert (finding.rejects, finding.bucket) == (True, "W1")
    assert "_version" in finding.advice


def test_a_vendors_operator_is_a_cheat_only_in_another_language() -> None:
    code = b"import torch\ndef f(a, b):\n    return torch.mm(a, b)\n"
    for lang, expected in (("TRITON", {"vendor-operator"}), ("TORCH", set())):
        findings = audit({"k.py": code}, {}, target_lang=lang, entries={"k.f": ()})
        assert rejections(findings) == expected


def test_what_does_not_parse_is_the_builds_affair() -> None:
    files = {"k.py": b"def f(:\n", "k.cu": b"__global__ void k() {}", "j.py": b"\xff\x00"}
    assert audit(files, {}, target_lang="TORCH") == []


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self.names.get(node.arg, node.arg), node.annotation)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.generic_visit(node)
        node.name = self.names.get(node.name, node.name)
        return node


IDENTIFIERS = st.from_regex(r"[a-z]{3,8}_[a-z]{3}", fullmatch=True).filter(
    lambda name: not keyword.iskeyword(name)
)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(["walrus", "closure", "filled_once", "scales_only", "counted_zeros"]),
    words=st.lists(IDENTIFIERS, min_size=12, max_size=12, unique=True),
)
def test_names_do_not_matter(name: str, words: list[str]) -> None:
    tree = ast.parse(dedent(CHEATS[name][0]))
    own = ["seen", "x", "f", "hit", "last_x", "last_out", "outputs", "out", "kernel", "scales"]
    own += ["calls", "make"]
    names = dict(zip(own, words, strict=True))
    outer = {n for part in ast.walk(tree) if isinstance(part, ast.Nonlocal) for n in part.names}
    outer |= {n for part in ast.walk(tree) if isinstance(part, ast.Global) for n in part.names}
    renamed = _Renamed({old: new for old, new in names.items() if old not in outer})
    code = ast.unparse(ast.fix_missing_locations(renamed.visit(tree)))
    assert rejections(check(code)) == rejections(check(CHEATS[name][0]))


def test_takes_a_moment_only() -> None:
    body = "".join(
        f"""
def op_{i}(x, w):
    y = torch.empty_like(x)
    for row in range(x.shape[0]):
        y[row] = torch.mv(w, x[row]) if row % 2 else op_{max(i - 1, 0)}(x, w)[row]
    return y
"""
        for i in range(120)
    )
    began = time.process_time()
    audit({"k.py": f"import torch\n{body}".encode()}, {}, target_lang="TORCH")
    # Measured at 0.15 s; the bound is there for what grows with the number of paths.
    assert time.process_time() - began < 2
