"""A test file for a function and shapes: the older version is the reference."""

from __future__ import annotations

import ast
import keyword
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath

from pytest_kopt.errors import BadInput
from pytest_kopt.standalone.kernel_places import names_in
from pytest_kopt.standalone.shapes import Argument

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

_SPEC = spec_from_file_location(
    "reference_{function}", Path(__file__).with_name("reference_{function}.py")
)
_MODULE = sys.modules[_SPEC.name] = module_from_spec(_SPEC)
_SPEC.loader.exec_module(_MODULE)


{reference}{tests}'''
_IN_FLOAT64 = '''\
def reference(*arguments, **named):
    """Compute in float64."""

    def wide(value):
        is_floating = torch.is_tensor(value) and value.is_floating_point()
        return value.double() if is_floating else value

    named = {{name: wide(value) for name, value in named.items()}}
    return _MODULE.{function}(*map(wide, arguments), **named)
'''
_AS_IT_IS = """\
# It is no plain torch: an error that both versions make is not seen.
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


@dataclass(frozen=True, slots=True)
class GeneratedCases:
    """A test file and what it computes the reference with, by path below the project's root."""

    #: The test file.
    path: str
    files: dict[str, bytes]
    #: What the reference is, for people.
    reference: str


def generate(
    function: str, cases: Sequence[tuple[Argument, ...]], old: Path, place: str, path: str
) -> GeneratedCases:
    """Return cases of a function in the module at `place`, with the source `old` as the reference.

    `path` is where the test file is to lie. BadInput where the function cannot be imported.
    """
    source = old.read_bytes()
    if function not in _defined(source):
        legal = ", ".join(sorted(n for n in _defined(source) if n[:1] != "_"))
        raise BadInput(f"{old} does not define {function!r}", where="--call", legal=legal)
    module = ".".join(PurePosixPath(place).with_suffix("").parts)
    if not all(part.isidentifier() and not keyword.iskeyword(part) for part in module.split(".")):
        what = f"{place} has no name that a test can import"
        raise BadInput(what, legal="--at kernels/softmax.py")
    is_plain = is_plain_torch(source)
    text = _FILE.format(
        function=function,
        module=module,
        reference=(_IN_FLOAT64 if is_plain else _AS_IT_IS).format(function=function),
        tests="".join(_tests(function, cases)),
    )
    beside = PurePosixPath(path).with_name(f"reference_{function}.py").as_posix()
    own = f"{old.name}'s own results, as it is no plain torch: an error of both is not seen"
    reference = f"{old.name} in float64" if is_plain else own
    return GeneratedCases(path, {path: text.encode(), beside: source}, reference)


def is_plain_torch(source: bytes) -> bool:
    """Say whether a source computes by torch's operators alone, in the dtype of its inputs."""
    names = names_in(source)
    words = {word for name in names for word in name.split(".")[1:]}
    words |= {node.attr for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)}
    return {name.partition(".")[0] for name in names} <= _PLAIN and not words & _NOT_PLAIN


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
        columns = list(zip(*(_sizes(case) for case in same), strict=True))
        varied = dict.fromkeys(column for column in columns if {*column} != {1})
        if not varied:
            what = "no size of a case is above 1"
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


def _sizes(case: Sequence[Argument]) -> list[int]:
    return [size for argument in case for size in argument.shape]
