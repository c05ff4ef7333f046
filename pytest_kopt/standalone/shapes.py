"""Arguments of a function from a line of shapes: `f32[4096,1024] i64[4096]<1000 eps=1e-5`."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_kopt.errors import BadInput

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
        """What arguments of two cases share where one test declares both: all but the sizes."""
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
