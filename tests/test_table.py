from __future__ import annotations

import io
import math
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_kopt.errors import BadInput
from pytest_kopt.schema.columns import GEMM
from pytest_kopt.schema.table import (
    Row,
    Table,
    cell,
    describe_header_drift,
    format_csv,
    make_row,
    parse_csv,
    read_csv,
    write_atomically,
)
from tests.builders import GEMM_HEADER, few_examples, gemm_row, gemm_table, table_of

HEADER = ("label", "M", "kind", "Check", "Forward TFLOPS", "out_snr")
ROW = "a,1,x,PASS,1.5,40.0"

TEXT = st.text(st.characters(codec="utf-8"), max_size=20)
SCALARS = st.integers() | st.floats(allow_nan=False) | st.booleans() | TEXT
METRICS = st.none() | st.floats() | st.floats(0.01, 1000)


def lines(*rows: str) -> str:
    return "".join(f"{line}\n" for line in (",".join(HEADER), *rows))


def same(left: float | None, right: float | None) -> bool:
    if left is None or right is None or math.isnan(left) or math.isnan(right):
        return repr(left) == repr(right)
    return left == right


def test_the_gemm_file_starts_with_the_frozen_header_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "benchmark.csv"
    write_atomically(path, format_csv(GEMM.header(("B", "M", "N", "K")), [gemm_row(256, 100.0)]))
    assert path.read_bytes().split(b"\n")[0] == (
        b"label,B,M,N,K,Check,Forward TFLOPS,Forward TFLOPS_stddev,Backward TFLOPS,"
        b"Backward TFLOPS_stddev,Forward Time (ms),Backward Time (ms),out_snr,da_snr,db_snr"
    )


def test_rows_stand_in_order_with_unix_line_ends_and_empty_cells_for_nothing() -> None:
    rows = [
        make_row(HEADER, {"label": "b", "M": 2, "kind": "y", "Check": "PASS", "out_snr": 0.1}),
        make_row(HEADER, {"label": "a", "M": 1, "kind": "x", "Check": "FAIL"}),
    ]
    assert format_csv(HEADER, rows) == lines("b,2,y,PASS,,0.1", "a,1,x,FAIL,,")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.1, "0.1"),
        (1 / 3, "0.3333333333333333"),
        (100.0, "100.0"),
        (1e22, "1e+22"),
        (5e-324, "5e-324"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (7, "7"),
        (True, "True"),
        ("skewed", "skewed"),
    ],
)
def test_a_cell_is_the_shortest_text_that_reads_back(value: Any, text: str) -> None:
    assert cell(value) == text


def test_a_numpy_float_is_written_as_the_float_it_is() -> None:
    numpy = pytest.importorskip("numpy")
    assert cell(numpy.float64(0.1)) == "0.1"


@given(
    st.lists(
        st.tuples(TEXT, SCALARS, SCALARS, st.sampled_from(["PASS", "FAIL"]), METRICS, METRICS),
        min_size=1,
        unique_by=lambda row: (cell(row[1]), cell(row[2])),
    )
)
@example([("carriage\rreturn", 1, "x", "PASS", 1.5, None)])
@few_examples
def test_what_is_written_reads_back_as_the_same_rows(rows: list[tuple[Any, ...]]) -> None:
    written = [make_row(HEADER, dict(zip(HEADER, row, strict=True))) for row in rows]
    table = parse_csv(format_csv(HEADER, written), "here")
    assert table.header == HEADER
    assert [dict(row.cells) for row in table.rows] == [dict(row.cells) for row in written]
    assert [row.key for row in table.rows] == [row.key for row in written]
    for read, row in zip(table.rows, rows, strict=True):
        assert same(read.number("Forward TFLOPS"), row[4])
        assert same(read.number("out_snr"), row[5])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
@few_examples
def test_pandas_reads_back_the_same_values(values: list[float]) -> None:
    pandas = pytest.importorskip("pandas")
    rows = [
        make_row(
            HEADER,
            {"label": f"case{i}", "M": i, "kind": "x", "Check": "PASS", "Forward TFLOPS": value},
        )
        for i, value in enumerate(values)
    ]
    frame = pandas.read_csv(io.StringIO(format_csv(HEADER, rows)))
    assert tuple(frame.columns) == HEADER
    assert frame["Forward TFLOPS"].tolist() == values
    assert frame["M"].tolist() == list(range(len(values)))
    assert frame["out_snr"].isna().all()


def test_pandas_reads_a_failed_rows_nan_and_a_missing_backward_as_nan() -> None:
    pandas = pytest.importorskip("pandas")
    table = gemm_table([math.nan, 100.0], checks=["FAIL", "PASS"])
    frame = pandas.read_csv(io.StringIO(format_csv(table.header, table.rows)))
    assert ",".join(frame.columns) == GEMM_HEADER
    assert frame["Check"].tolist() == ["FAIL", "PASS"]
    assert frame["Forward TFLOPS"].isna().tolist() == [True, False]
    assert frame["Backward TFLOPS"].isna().all()


def test_windows_line_ends_and_quotes_are_read() -> None:
    table = parse_csv(lines('"a ""b"", c",1,x,PASS,1.5,').replace("\n", "\r\n"), "here")
    assert table.rows[0].label == 'a "b", c'
    assert table.rows[0].number("out_snr") is None


def test_rows_are_matched_by_dims_and_not_by_label() -> None:
    table = parse_csv(lines("renamed,1,x,PASS,1.5,"), "here")
    assert table.dims == ("M", "kind")
    assert table.metrics == ("Forward TFLOPS", "out_snr")
    assert list(table.by_key()) == [("1", "x")]


def test_dims_are_numbers_for_json_readers_where_they_are_numbers() -> None:
    row = make_row(
        ("label", "M", "p", "causal", "distribution", "Check"),
        {"label": "a", "M": 4096, "p": 0.5, "causal": False, "distribution": "uniform"},
    )
    assert row.typed_dims == {"M": 4096, "p": 0.5, "causal": False, "distribution": "uniform"}


@pytest.mark.parametrize("text", ["nan", "inf", "1_000", "infinity"])
def test_a_dim_that_only_python_takes_for_a_number_stays_text(text: str) -> None:
    row = make_row(("label", "kind", "Check"), {"label": "a", "kind": text, "Check": "PASS"})
    assert row.typed_dims == {"kind": text}


@pytest.mark.parametrize(
    ("text", "number"),
    [("", None), ("-", None), (" ", None), ("1.5", 1.5), ("-2e-3", -2e-3), ("inf", math.inf)],
)
def test_a_metric_cell_is_a_number_or_nothing(text: str, number: float | None) -> None:
    row = Row({"label": "a", "x": text}, {})
    assert row.number("x") == number


@pytest.mark.parametrize("text", ["fast", "1,5", "0x10", "1_000", "١٢"])
def test_a_metric_cell_that_is_no_number_is_named(text: str) -> None:
    row = Row({"label": "big", "Time (ms)": text}, {})
    with pytest.raises(BadInput) as refusal:
        row.number("Time (ms)")
    assert "'big'" in str(refusal.value) and "'Time (ms)'" in str(refusal.value)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "is empty"),
        ("  \n\n", "is empty"),
        (lines(), "no rows"),
        (lines(ROW)[:-1], "cut off"),
        (lines("a,1,x,PASS,1.5"), "line 2 has 5 cells"),
        (lines(ROW, "b,2,x,PASS,1.5,40.0,extra"), "line 3 has 7 cells"),
        (lines(ROW, ""), "line 3 has 0 cells"),
        (lines("a,1,x,pass,1.5,"), "'pass'"),
        (lines("a,1,x,,1.5,"), "''"),
        (lines(ROW, "b,1,x,PASS,1.4,"), "M=1, kind=x"),
        (lines('a,1,"x,PASS,1.5,'), "is no CSV"),
        ("name,M,Check,x\na,1,PASS,2\n", "name,M,Check,x"),
        ("label,M,x\na,1,2\n", "label,M,x"),
        ("label,M,Check,x,x\na,1,PASS,2,3\n", "'x' appears twice"),
        ("label,Check,Check\na,PASS,PASS\n", "'Check' appears twice"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_fault(text: str, complaint: str) -> None:
    with pytest.raises(BadInput) as refusal:
        parse_csv(text, "new.csv")
    assert str(refusal.value).startswith("new.csv: ")
    assert complaint in str(refusal.value)


def test_a_file_cut_off_anywhere_inside_a_line_is_refused() -> None:
    table = gemm_table([100.0, 200.0])
    text = format_csv(table.header, table.rows)
    for end in range(len(text)):
        if text[:end].endswith("\n") and text[:end].count("\n") > 1:
            continue
        with pytest.raises(BadInput):
            parse_csv(text[:end], "new.csv")


@pytest.mark.parametrize("content", [None, b"label,Check\n\xff,PASS\n"])
def test_a_file_that_is_missing_or_not_utf_8_is_named(
    tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "new.csv"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BadInput, match=r"new\.csv"):
        read_csv(path)


def test_a_directory_is_no_csv(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=str(tmp_path)):
        read_csv(tmp_path)


def test_a_table_with_two_rows_of_the_same_dims_names_both() -> None:
    table = table_of([gemm_row(256, 1.0, label="one"), gemm_row(256, 2.0, label="two")])
    with pytest.raises(BadInput, match=r"'one' and 'two'.*B=1, M=256, N=256, K=256"):
        table.check_unique("here")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (("label", "M", "Check", "b"), "'a' is gone and 'b' is new"),
        (("label", "M", "Check"), "'a' is gone"),
        (("label", "M", "Check", "a", "b"), "'b' is new"),
        (("label", "Check", "M", "a"), "column 2 is 'Check', not 'M'"),
    ],
    ids=["renamed", "missing", "extra", "reordered"],
)
def test_each_kind_of_header_drift_is_told_apart(found: tuple[str, ...], words: str) -> None:
    assert words in describe_header_drift(found, ("label", "M", "Check", "a"))


def test_writing_replaces_the_file_and_makes_its_directories(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.csv"
    write_atomically(path, "one\n")
    write_atomically(path, "two\n")
    assert path.read_bytes() == b"two\n"
    assert [entry.name for entry in path.parent.iterdir()] == ["b.csv"]


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    write_atomically(path, "one\n")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_bytes() == b"one\n"
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.csv"]


def test_a_written_file_has_the_permissions_the_umask_leaves(tmp_path: Path) -> None:
    umask = os.umask(0o027)
    try:
        write_atomically(tmp_path / "b.csv", "one\n")
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "b.csv").stat().st_mode) == 0o640


def test_a_table_knows_no_order_but_that_of_its_rows() -> None:
    table = gemm_table([1.0, 2.0, 3.0])
    shuffled = Table(table.header, tuple(reversed(table.rows)))
    assert parse_csv(format_csv(shuffled.header, shuffled.rows), "here") == shuffled
