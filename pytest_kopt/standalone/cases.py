"""The cases of a comparison without tests: declared in a file, or made from shapes."""

from __future__ import annotations

import ast
import keyword
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath

from pytest_kopt.errors import BadInput
from pytest_kopt.imports import imports_from, is_imported, module_parts, names_in
from pytest_kopt.options.project import Project
from pytest_kopt.standalone.child_session import (
    place_below,
    place_inside,
    place_of,
    tests_below,
)
from pytest_kopt.versions.tree import Tree, project_files

#: Modules of a source that computes in float64 if its inputs are float64.
_PLAIN = frozenset(
    {
        *("__future__", "collections", "dataclasses", "einops", "enum", "functools", "itertools"),
        *("math", "operator", "torch", "typing"),
    }
)
#: What of torch is no plain torch: kernels of others, compiled sources, products of one dtype.
_NOT_PLAIN = frozenset({"cpp_extension", "load_inline", "ops", "library", "_scaled_mm", "cuda"})
_FILE = '''\
"""Cases of {function}, made by kopt; reference_{function}.py says what is right."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from {module} import {function}

# Its relative imports are those of the module's package.
_SPEC = spec_from_file_location(
    "{package}reference_{function}", Path(__file__).with_name("reference_{function}.py")
)
_MODULE = sys.modules[_SPEC.name] = module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)


{reference}{tests}'''
_IN_FLOAT64 = '''\
def reference(*arguments, **named):
    """Compute in float64, and write to the inputs what is written there."""

    def wide(value):
        is_floating = torch.is_tensor(value) and value.is_floating_point()
        return value.double() if is_floating else value

    given = (*arguments, *named.values())
    wider = [*map(wide, given)]
    as_named = dict(zip(named, wider[len(arguments) :]))
    before = [x._version if torch.is_tensor(x) else 0 for x in wider]
    result = _MODULE.{function}(*wider[: len(arguments)], **as_named)
    for value, written, version in zip(given, wider, before):
        if written is not value and written._version != version:
            value.copy_(written)
    return result
'''
_AS_IT_IS = """\
# It uses {beyond}: an error that both versions make is not seen.
reference = _MODULE.{function}
"""
_TEST = """

@pytest.mark.kopt
@pytest.mark.parametrize("{sizes}", {values})
def test_{name}(kopt, {sizes}):
    kopt(
        {function},
        inputs=lambda: {inputs},
        reference=reference,
        dims={dims},
    )
"""
#: Names of dtypes as shapes have them, and torch's.
DTYPES = {
    **{f"f{bits}": f"float{bits}" for bits in (64, 32, 16)},
    **{f"i{bits}": f"int{bits}" for bits in (64, 32, 16, 8)},
    "bf16": "bfloat16",
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "u8": "uint8",
    "bool": "bool",
}
_ARGUMENT = re.compile(
    r"(?:(?P<name>[A-Za-z_]\w*)=)?"
    r"(?:(?P<dtype>[a-z]\w*)\[(?P<shape>[\d,\s]*)\](?:<(?P<below>\d+))?|(?P<number>.+))"
)
_LEGAL = f"f32[4096,1024], i64[4096]<1000, x=f32[8], 3, eps=1e-5; dtypes: {', '.join(DTYPES)}"


@dataclass(frozen=True, slots=True)
class Cases:
    """The cases of a session, and of which file of the project they try a version."""

    root: Path
    #: Whether the project has a command that builds its kernels.
    builds: bool
    #: Files, folders or cases for pytest; none: all of the project's.
    words: tuple[str, ...]
    #: Where the project's settings say that all of them are, relative to the root.
    test_paths: tuple[str, ...]
    #: The tests' files by path below the root. In a tree they are files of their own, so that what
    #: a test finds beside itself is that tree's.
    files: Mapping[str, bytes]
    #: The file, or the folder that holds versions' files, by path below the root; "" for the root.
    place: str = ""
    #: What made cases are checked against, for people; "" for tests that were there.
    reference: str = ""

    @classmethod
    def named(cls, words: Sequence[str] | None, versions: Sequence[Path], at: str | None) -> Cases:
        """Take tests that are there, of the project's settings where no words name any.

        A command without such words has None.

        `versions` are files, folders, which hold files at their places, or no paths: then the tests
        may be those of another commit. BadInput where there are no tests, or it is not known what
        the versions are versions of.
        """
        takes_words, words = words is not None, words or ()
        project = Project.here(*words)
        root = project.root.resolve()
        if not all(version.exists() for version in versions):
            return cls(root, project.builds, tuple(words), project.test_paths, {})
        named = [Path(word.partition("::")[0]).resolve() for word in words]
        paths = named or [root / path for path in project.test_paths]
        if not paths:
            what = f"pytest's settings in the project {root} have no testpaths"
            fix = "name TESTS, or --call NAME --shapes 'f32[4096,1024]'"
            raise BadInput(what, fix=fix if takes_words else 'testpaths = ["tests"] there')
        for path in paths:
            if not path.exists():
                raise BadInput("there is no such file or folder", where=str(path))
            if not path.is_relative_to(root):
                raise BadInput(f"lies outside of the project {root}", where=str(path))
        tests = tests_below(paths)
        place = place_below(root, at, tests) if at else ""
        if not at and all(version.is_file() for version in versions):
            place = place_of(versions, root, tests)
        files = {test.relative_to(root).as_posix(): test.read_bytes() for test in tests}
        return cls(root, project.builds, tuple(words), project.test_paths, files, place)

    @classmethod
    def made(
        cls, function: str, shapes: Sequence[str], versions: Sequence[Path], at: str | None, to: str
    ) -> Cases:
        """Make a test of a function from lines of shapes; the first version is the reference.

        It is to lie at `to`, below the root. This process goes to the root, where modules are
        looked for.
        """
        lines = [parse(line) for line in shapes]
        project = Project.here()
        root, builds = project.root.resolve(), project.builds
        inside = [version for version in versions if version.is_relative_to(root)]
        if not inside:
            # Files of no project: what lies beside them is what they may import.
            root, builds, inside = versions[0].parent, False, [versions[0]]
        place = place_inside(root, at) if at else inside[-1].relative_to(root).as_posix()
        os.chdir(root)
        files, reference = generate(function, lines, versions[0], place, to)
        return cls(root, builds, (to,), (), files, place, reference)

    def of_its_place(self) -> list[str]:
        """Return the files of tests that import what lies at the place of the versions."""
        path, files = PurePosixPath(self.place), [*project_files(self.root)]
        return [
            str(self.root / file)
            for file, source in self.files.items()
            if not file.endswith("conftest.py")
            and any(is_imported(path, names) for names in imports_from(self.root, files, [source]))
        ]

    def within(self, tree: Tree, default: Sequence[str] = ()) -> list[str]:
        """Return the words, of which the `default` is used if there are none, for a tree."""
        # Pytest looks into the folders of its settings only if it starts in its root directory.
        is_elsewhere = tree.folder != tree.place
        all_tests = [str(self.root / path) for path in self.test_paths or (".",)]
        words = []
        for word in self.words or default or (all_tests if is_elsewhere else ()):
            path, *case = word.split("::")
            place = Path(path).resolve().relative_to(tree.root)
            words.append("::".join([str(tree.place / place), *case]))
        return words


def generate(
    function: str, cases: Sequence[tuple[Argument, ...]], old: Path, place: str, path: str
) -> tuple[dict[str, bytes], str]:
    """Return cases of a function in the module at `place`, with the source `old` as the reference.

    They are a test file at `path` and what it computes the reference with, by path below the
    project's root, and the reference in words. BadInput where the function cannot be imported.
    """
    source = old.read_bytes()
    if function not in _defined(source):
        legal = ", ".join(sorted(n for n in _defined(source) if n[:1] != "_"))
        raise BadInput(f"{old} does not define {function!r}", where="--call", legal=legal)
    parts = module_parts(PurePosixPath(place))
    are_names = all(part.isidentifier() and not keyword.iskeyword(part) for part in parts)
    if not (parts and are_names):
        what = f"{place} has no name that a test can import"
        raise BadInput(what, fix="--at kernels/softmax.py")
    beyond = ", ".join(sorted(beyond_torch(source)))
    text = _FILE.format(
        function=function,
        module=".".join(parts),
        package="".join(f"{part}." for part in PurePosixPath(place).parent.parts),
        reference=(_AS_IT_IS if beyond else _IN_FLOAT64).format(function=function, beyond=beyond),
        tests="".join(_tests(function, cases)),
    )
    beside = PurePosixPath(path).with_name(f"reference_{function}.py").as_posix()
    own = f"{old.name}'s own results, as it uses {beyond}: an error of both is not seen"
    reference = own if beyond else f"{old.name} in float64"
    return {path: text.encode(), beside: source}, reference


def beyond_torch(source: bytes) -> set[str]:
    """Return what a source uses besides torch's operators; it may not compute in float64."""
    names = names_in(source)
    words = {word for name in names for word in name.split(".")[1:]}
    words |= {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    return ({name.partition(".")[0] for name in names} - _PLAIN) | (words & _NOT_PLAIN)


def _defined(source: bytes) -> set[str]:
    """Return the names that a source defines or imports at its top."""
    try:
        body = ast.parse(source).body
    except (SyntaxError, ValueError):
        return set()
    names = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _tests(function: str, cases: Sequence[tuple[Argument, ...]]) -> Iterator[str]:
    """Yield a test for all cases of the same dtypes, ranks and literals."""

    def kind(case: tuple[Argument, ...]) -> str:
        return repr([argument.kind for argument in case])

    for number, (_, members) in enumerate(groupby(sorted(cases, key=kind), key=kind)):
        same = list(dict.fromkeys(members))
        # Sizes that are equal in every case may have to be: one parameter stands for them.
        sizes_of = [[size for argument in case for size in argument.shape] for case in same]
        columns = list(zip(*sizes_of, strict=True))
        varied = dict.fromkeys(column for column in columns if {*column} != {1})
        if not varied:
            what = "all sizes of a case are 1"
            raise BadInput(what, where="--shapes", legal="tensors, as f32[4096,1024]")
        names = {column: f"n{place}" for place, column in enumerate(varied)}
        left = iter(names.get(column, "1") for column in columns)
        drawn = [(x.name, x.drawn([next(left) for _ in x.shape])) for x in same[0]]
        pairs = (f'"{name}": {text}' for name, text in drawn)
        by_position = f"({', '.join(text for _, text in drawn)},)"
        sizes = list(names.values())
        dims = ", ".join(f'"{size}": {size}' for size in sizes)
        yield _TEST.format(
            function=function,
            name=function + (f"_{number}" if number else ""),
            sizes=", ".join(sizes),
            values=[column if len(sizes) > 1 else column[0] for column in zip(*names, strict=True)],
            inputs=f"{{{', '.join(pairs)}}}" if drawn[0][0] else by_position,
            dims=f"{{{dims}}}",
        )


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument: a tensor of random values, or a literal of Python's."""

    #: Its keyword, "" for one by position.
    name: str
    #: A key of DTYPES; "" for a literal.
    dtype: str = ""
    #: Of a tensor.
    shape: tuple[int, ...] = ()
    #: Integers of the tensor are below this.
    below: int | None = None
    #: As the command has it.
    literal: str = ""

    @property
    def kind(self) -> tuple[object, ...]:
        """The common part of the arguments of two cases in one test: all but the sizes."""
        return self.name, self.dtype, len(self.shape), self.below, self.literal

    def drawn(self, sizes: Sequence[str]) -> str:
        """Return the expression that draws it; `sizes` stand for the numbers of its shape."""
        if not self.dtype:
            return self.literal
        shape = f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"
        dtype = f"torch.{DTYPES[self.dtype]}"
        if self.below is not None:
            return f"torch.randint({self.below}, {shape}, dtype={dtype}, device=kopt.device)"
        if self.dtype == "bool":
            return f"torch.rand({shape}, device=kopt.device) < 0.5"
        if self.dtype.startswith("f8"):
            return f"torch.randn({shape}, device=kopt.device).to({dtype})"
        return f"torch.randn({shape}, dtype={dtype}, device=kopt.device)"


def parse(line: str) -> tuple[Argument, ...]:
    """Return the arguments of one case; BadInput names the word that is none."""
    try:
        words = shlex.split(re.sub(r",\s+", ",", line), posix=False)
    except ValueError as error:
        raise BadInput(f"{line!r}: {error}", where="--shapes", legal=_LEGAL) from None
    arguments = tuple(map(_argument, words))
    if len({bool(argument.name) for argument in arguments}) > 1:
        what = f"{line!r} has arguments with a name and others without"
        raise BadInput(what, where="--shapes", legal="all by name or all by position")
    if not any(argument.dtype for argument in arguments):
        raise BadInput(f"{line!r} has no tensor", where="--shapes", legal=_LEGAL)
    return arguments


def _argument(word: str) -> Argument:
    found = _ARGUMENT.fullmatch(word)
    assert found is not None
    name, dtype, below = found["name"] or "", found["dtype"], found["below"]
    if found["number"] is not None:
        try:
            ast.literal_eval(found["number"])
        except (ValueError, SyntaxError):
            what = f"{word!r} is neither a tensor nor a literal"
            raise BadInput(what, where="--shapes", legal=_LEGAL) from None
        return Argument(name, literal=found["number"])
    if dtype not in DTYPES:
        raise BadInput(f"{word!r} has no known dtype", where="--shapes", legal=_LEGAL)
    if dtype[0] in "iu" and not below:
        what = f"{word!r} needs a bound that its integers are below"
        raise BadInput(what, where="--shapes", legal=f"{word}<1000")
    sizes = [size for size in found["shape"].split(",") if size.strip()]
    return Argument(name, dtype, tuple(map(int, sizes)), int(below) if below else None)
