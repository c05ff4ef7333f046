"""Schemas: the columns of a row and the measured quantity behind each of them."""

from __future__ import annotations

import csv
import hashlib
import io
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

from pytest_kopt.errors import BadInput

Scalar = int | float | str | bool
Better = Literal["higher", "lower"]

#: The unit of a quantity: `rate` is the schema's, `spread` that of the samples it is taken of.
Unit = Literal["rate", "ms", "us", "spread", "dB", "1"]
#: Quantities a measured case can supply, with their units; `grad_snr:<i>` is the gradient of
#: input i, `grad_snr` the worst of them.
#: In cases/running `figures_of` and `figures_of_case` fill them: a name that they lack has `nan`
#: in its cells.
QUANTITIES: dict[str, Unit] = {
    "forward_rate": "rate",
    "forward_rate_stddev": "spread",
    "backward_rate": "rate",
    "backward_rate_stddev": "spread",
    "forward_ms": "ms",
    "forward_ms_stddev": "spread",
    "backward_ms": "ms",
    "backward_ms_stddev": "spread",
    "forward_us": "us",
    "backward_us": "us",
    "out_snr": "dB",
    "grad_snr": "dB",
    "grad_snr:<input>": "dB",
    "max_abs_error": "1",
    "mismatch_share": "1",
}

_BACKWARD = ("backward_", "grad_snr")
_OPERATORS = {
    "==": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


@dataclass(frozen=True, slots=True)
class Column:
    """A column after `Check`: one of `QUANTITIES`; `better` says which way a metric improves."""

    name: str
    quantity: str
    better: Better | None = None

    @property
    def is_time(self) -> bool:
        return self.quantity.startswith(("forward_", "backward_"))

    @property
    def is_backward(self) -> bool:
        return self.quantity.startswith(_BACKWARD)


@dataclass(frozen=True, slots=True)
class Schema:
    """The columns of one kind of case.

    `dims` None takes the case's own dims in declared order. `unit` is the unit of the rate columns
    and `work` what a case has to declare for it. `gate` is an extra condition on a column of the
    row, such as `err == 0`, without which a row is not PASS.
    """

    name: str
    columns: tuple[Column, ...]
    dims: tuple[str, ...] | None = None
    defaults: Mapping[str, Scalar] = field(default_factory=dict)
    unit: str | None = None
    work: Literal["flops", "nbytes"] | None = None
    gate: str | None = None

    def __post_init__(self) -> None:
        refused = partial(BadInput, where=f"schema {self.name!r}")
        names = [column.name for column in self.columns]
        if doubled := first_doubled([*names, "label", "Check", *(self.dims or ())]):
            raise refused(f"column {doubled!r} is declared twice")
        for column in self.columns:
            if not (column.quantity in QUANTITIES or column.quantity.startswith("grad_snr:")):
                what = f"column {column.name!r} has the unknown quantity {column.quantity!r}"
                raise refused(what, legal=QUANTITIES)
        if self.gate is not None and parse_gate(self.gate)[0] not in names:
            raise refused(f"gate {self.gate!r} names no column", legal=names)

    def complete_dims(self, dims: Mapping[str, Scalar], case: str) -> dict[str, Scalar]:
        """Return the case's dims in column order, defaults filled in; BadInput for others."""
        refused = partial(BadInput, where=f"case {case}")
        names = self.dims if self.dims is not None else tuple(dims)
        complete = {**self.defaults, **dims}
        for name in dims:
            if name not in names:
                what = f"dim {name!r} does not fit the schema {self.name!r}"
                raise refused(what, legal=names)
        for name in names:
            if name not in complete:
                what = f"dim {name!r} of the schema {self.name!r} is not given"
                raise refused(what, legal=names)
        for name in names:
            if not isinstance(complete[name], (int, float, str, bool)):
                raise refused(
                    f"dim {name!r} is {complete[name]!r}", legal="int, float, str or bool"
                )
            if not isinstance(name, str) or not name or name in self.header(()):
                raise refused(f"dim {name!r} is no usable column name", legal="a new name")
        return {name: complete[name] for name in names}

    def header(self, dims: Sequence[str]) -> tuple[str, ...]:
        return ("label", *dims, "Check", *(column.name for column in self.columns))


def first_doubled(names: Sequence[str]) -> str | None:
    return min((name for name in names if names.count(name) > 1), default=None)


def parse_gate(gate: str) -> tuple[str, str, float]:
    """Split a gate such as `err_flydsl_ps == 0` into column, operator and number."""
    for sign in _OPERATORS:
        column, separator, limit = gate.rpartition(f" {sign} ")
        if separator:
            try:
                return column.strip(), sign, float(limit)
            except ValueError:
                break
    raise BadInput(f"gate {gate!r} cannot be read", legal="COLUMN ==|<=|>=|<|> NUMBER")


def gate_holds(gate: str, value: float) -> bool:
    _, sign, limit = parse_gate(gate)
    return bool(_OPERATORS[sign](value, limit))


def fingerprint(header: Sequence[str]) -> str:
    """Return the SHA-256 of a header; names that hold a comma or quote are told apart."""
    return hashlib.sha256(line(header).removesuffix("\n").encode()).hexdigest()


def line(cells: Sequence[str]) -> str:
    r"""Return a line of a CSV: comma-separated, ended by `\n`, quoted only where needed."""
    text = io.StringIO()
    # With this terminator the writer quotes cells that hold a carriage return, which our reader
    # would take for the end of a line.
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue().removesuffix("\r\n") + "\n"


def _two_directions(unit: str, *gradients: str) -> tuple[Column, ...]:
    return (
        Column(f"Forward {unit}", "forward_rate", "higher"),
        Column(f"Forward {unit}_stddev", "forward_rate_stddev"),
        Column(f"Backward {unit}", "backward_rate", "higher"),
        Column(f"Backward {unit}_stddev", "backward_rate_stddev"),
        Column("Forward Time (ms)", "forward_ms", "lower"),
        Column("Backward Time (ms)", "backward_ms", "lower"),
        Column("out_snr", "out_snr"),
        *(Column(f"{name}_snr", f"grad_snr:{i}") for i, name in enumerate(gradients)),
    )


GEMM = Schema(
    "gemm",
    _two_directions("TFLOPS", "da", "db"),
    dims=("B", "M", "N", "K"),
    defaults={"B": 1},
    unit="TFLOPS",
    work="flops",
)
GROUPED_GEMM = replace(
    GEMM, name="grouped_gemm", dims=("G", "M", "N", "K", "distribution"), defaults={}
)
ATTENTION = replace(
    GROUPED_GEMM,
    name="attention",
    columns=_two_directions("TFLOPS", "dq", "dk", "dv"),
    dims=("B", "Hq", "Hkv", "Sq", "Skv", "D", "causal"),
)
MEMORY = Schema(
    "memory",
    (*_two_directions("GB/s"), Column("grad_snr", "grad_snr")),
    unit="GB/s",
    work="nbytes",
)
SINGLE = Schema(
    "single",
    (
        Column("Time (ms)", "forward_ms", "lower"),
        Column("Time (ms)_stddev", "forward_ms_stddev"),
        Column("out_snr", "out_snr"),
    ),
)
BUILT_IN = {schema.name: schema for schema in (GEMM, MEMORY, ATTENTION, GROUPED_GEMM, SINGLE)}


def resolve(schema: str | Schema, case: str) -> Schema:
    """Return the schema a case names, or the user's own one that it holds."""
    if isinstance(schema, Schema):
        return schema
    if schema not in BUILT_IN:
        raise BadInput(
            f"schema {schema!r} is unknown",
            where=f"case {case}",
            legal=[*BUILT_IN, "a pytest_kopt.Schema"],
        )
    return BUILT_IN[schema]
