from __future__ import annotations

import hashlib
import math
import re
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_kopt.cases.running.check import figures_of
from pytest_kopt.cases.running.run_case import figures_of_case
from pytest_kopt.errors import BadInput
from pytest_kopt.measure.engine import Timing
from pytest_kopt.numerics.compare import compare
from pytest_kopt.schema.columns import (
    ATTENTION,
    BUILT_IN,
    GEMM,
    GROUPED_GEMM,
    MEMORY,
    QUANTITIES,
    SINGLE,
    Column,
    Schema,
    fingerprint,
    gate_holds,
    parse_gate,
    resolve,
)
from pytest_kopt.schema.table import format_csv
from tests.builders import GEMM_HEADER

TIME = Column("Time (us)", "forward_us", "lower")
ERROR = Column("err", "max_abs_error")

HEADERS = [
    (GEMM, ("B", "M", "N", "K"), GEMM_HEADER),
    (
        MEMORY,
        ("rows", "cols"),
        "label,rows,cols,Check,Forward GB/s,Forward GB/s_stddev,Backward GB/s,"
        "Backward GB/s_stddev,Forward Time (ms),Backward Time (ms),out_snr,grad_snr",
    ),
    (
        ATTENTION,
        ("B", "Hq", "Hkv", "Sq", "Skv", "D", "causal"),
        "label,B,Hq,Hkv,Sq,Skv,D,causal,Check,Forward TFLOPS,Forward TFLOPS_stddev,"
        "Backward TFLOPS,Backward TFLOPS_stddev,Forward Time (ms),Backward Time (ms),"
        "out_snr,dq_snr,dk_snr,dv_snr",
    ),
    (
        GROUPED_GEMM,
        ("G", "M", "N", "K", "distribution"),
        "label,G,M,N,K,distribution,Check,Forward TFLOPS,Forward TFLOPS_stddev,"
        "Backward TFLOPS,Backward TFLOPS_stddev,Forward Time (ms),Backward Time (ms),"
        "out_snr,da_snr,db_snr",
    ),
    (SINGLE, ("n",), "label,n,Check,Time (ms),Time (ms)_stddev,out_snr"),
]


@pytest.mark.parametrize(
    ("schema", "dims", "header"), HEADERS, ids=[schema.name for schema, *_ in HEADERS]
)
def test_each_profile_has_the_contracts_header(
    schema: Schema, dims: tuple[str, ...], header: str
) -> None:
    assert ",".join(schema.header(dims)) == header


def test_every_quantity_is_measured_of_a_case_that_was_timed() -> None:
    case: Any = SimpleNamespace(schema=MEMORY, work=(1e6, 2e6))
    timing = Timing("wall", (1.0, 2.0), calls_per_sample=1)
    found = [compare(1.0, 1.0, name=name) for name in ("out", "grad of input 0")]
    figures = figures_of(found) | figures_of_case(case, [timing, timing])
    assert {*figures} == {name.replace("<input>", "0") for name in QUANTITIES}


def test_the_built_in_profiles_are_found_by_name() -> None:
    assert set(BUILT_IN) == {"gemm", "memory", "attention", "grouped_gemm", "single"}
    assert resolve("memory", "t") is MEMORY


def test_an_unknown_profile_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput) as refusal:
        resolve("gem", "test_a.py::test")
    text = str(refusal.value)
    assert "test_a.py::test" in text and "'gem'" in text
    assert all(name in text for name in BUILT_IN)


def test_a_users_own_schema_is_taken_as_it_is() -> None:
    own = Schema("mine", (TIME,))
    assert resolve(own, "t") is own


def test_gemm_dims_come_in_column_order_and_b_is_1_when_not_given() -> None:
    dims = GEMM.complete_dims({"K": 3, "N": 2, "M": 1}, "t")
    assert list(dims.items()) == [("B", 1), ("M", 1), ("N", 2), ("K", 3)]
    assert GEMM.complete_dims({"B": 8, "M": 1, "N": 2, "K": 3}, "t")["B"] == 8


def test_free_dims_keep_the_order_in_which_the_case_declares_them() -> None:
    dims = SINGLE.complete_dims({"z": 1, "a": "x", "m": True, "f": 0.5}, "t")
    assert list(dims) == ["z", "a", "m", "f"]


@pytest.mark.parametrize(
    ("schema", "dims", "offender"),
    [
        (GEMM, {"M": 1, "N": 2}, "'K'"),
        (GEMM, {"M": 1, "N": 2, "K": 3, "L": 4}, "'L'"),
        (GEMM, {"M": [1], "N": 2, "K": 3}, "[1]"),
        (GEMM, {"M": None, "N": 2, "K": 3}, "None"),
        (SINGLE, {"label": 1}, "'label'"),
        (SINGLE, {"Check": 1}, "'Check'"),
        (SINGLE, {"Time (ms)": 1}, "'Time (ms)'"),
        (SINGLE, {"": 1}, "''"),
        (SINGLE, {7: 1}, "7"),
    ],
)
def test_dims_that_do_not_fit_are_refused_by_name(
    schema: Schema, dims: dict[Any, Any], offender: str
) -> None:
    with pytest.raises(BadInput) as refusal:
        schema.complete_dims(dims, "test_a.py::test")
    assert offender in str(refusal.value)
    assert "test_a.py::test" in str(refusal.value)


def test_a_column_declared_twice_is_refused() -> None:
    with pytest.raises(BadInput, match=r"mine.*'Time \(us\)' is declared twice"):
        Schema("mine", (TIME, TIME))
    with pytest.raises(BadInput, match="'Check' is declared twice"):
        Schema("mine", (Column("Check", "forward_us"),))
    with pytest.raises(BadInput, match="'M' is declared twice"):
        Schema("mine", (TIME,), dims=("M", "M"))


def test_a_column_of_an_unknown_quantity_is_refused_with_the_known_ones() -> None:
    with pytest.raises(BadInput, match=r"'Time' .* 'forward_s'.*forward_us"):
        Schema("mine", (Column("Time", "forward_s"),))


def test_a_gate_has_to_name_a_column_of_its_schema() -> None:
    assert Schema("mine", (TIME, ERROR), gate="err == 0").gate == "err == 0"
    with pytest.raises(BadInput, match=r"'error == 0'.*Time \(us\), err"):
        Schema("mine", (TIME, ERROR), gate="error == 0")


@pytest.mark.parametrize(
    ("gate", "parts"),
    [
        ("err_flydsl_ps == 0", ("err_flydsl_ps", "==", 0.0)),
        ("max err <= 1e-3", ("max err", "<=", 1e-3)),
        ("out_snr >= 25", ("out_snr", ">=", 25.0)),
        ("err < 2", ("err", "<", 2.0)),
        ("share > -1.5", ("share", ">", -1.5)),
    ],
)
def test_a_gate_is_column_operator_number(gate: str, parts: tuple[str, str, float]) -> None:
    assert parse_gate(gate) == parts


@pytest.mark.parametrize("gate", ["err", "err == zero", "err = 0", "", "err =="])
def test_a_gate_that_cannot_be_read_is_refused_with_the_form(gate: str) -> None:
    with pytest.raises(BadInput, match=re.escape("COLUMN ==|<=|>=|<|> NUMBER")):
        parse_gate(gate)


@pytest.mark.parametrize(
    ("gate", "holding", "failing"),
    [
        ("err == 0", 0.0, 1e-300),
        ("err <= 1", 1.0, 1.0000001),
        ("err >= 1", 1.0, 0.9999999),
        ("err < 1", 0.9999999, 1.0),
        ("err > 1", 1.0000001, 1.0),
    ],
)
def test_a_gate_holds_up_to_its_limit_and_never_for_nan(
    gate: str, holding: float, failing: float
) -> None:
    assert gate_holds(gate, holding)
    assert not gate_holds(gate, failing)
    assert not gate_holds(gate, math.nan)


def test_backward_columns_are_those_that_stay_empty_without_a_backward() -> None:
    assert [column.name for column in GEMM.columns if column.is_backward] == [
        "Backward TFLOPS",
        "Backward TFLOPS_stddev",
        "Backward Time (ms)",
        "da_snr",
        "db_snr",
    ]


def test_a_metric_declares_its_direction() -> None:
    directions = {
        column.name: column.better
        for schema in BUILT_IN.values()
        for column in schema.columns
        if column.better
    }
    assert directions == {
        "Forward TFLOPS": "higher",
        "Backward TFLOPS": "higher",
        "Forward GB/s": "higher",
        "Backward GB/s": "higher",
        "Forward Time (ms)": "lower",
        "Backward Time (ms)": "lower",
        "Time (ms)": "lower",
    }


def test_the_fingerprint_is_the_sha256_of_the_files_first_line() -> None:
    header = tuple(GEMM_HEADER.split(","))
    first_line = format_csv(header, []).removesuffix("\n")
    assert fingerprint(header) == hashlib.sha256(first_line.encode()).hexdigest()


def test_two_different_headers_never_have_one_fingerprint() -> None:
    assert fingerprint(["label", "Check", "a,b"]) != fingerprint(["label", "Check", "a", "b"])
