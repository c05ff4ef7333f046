from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_kopt.cli.main import main
from pytest_kopt.decide.verdict import Verdict
from pytest_kopt.schema.table import Table, format_csv
from tests.builders import GEMM_HEADER, gemm_row, gemm_table, table_of, write_table

OLD = gemm_table([100.0, 100.0, 100.0])
BOTH_OLD = gemm_table([500.0] * 3, [250.0] * 3)


def all_at(rate: float) -> Table:
    return gemm_table([rate] * 3)


def text_of(table: Table) -> str:
    return format_csv(table.header, table.rows)


class Desk:
    """A directory of CSV files and `kopt decide` over them."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self._capsys = capsys
        self.stdout = ""
        self.stderr = ""

    def put(self, name: str, content: Table | str | bytes | None) -> str:
        path = self.directory / f"{name}.csv"
        if isinstance(content, Table):
            write_table(path, content)
        elif content is not None:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(path)

    def decide(
        self,
        candidate: Table | str | bytes | None,
        *words: str,
        incumbent: Table | str | bytes | None = OLD,
        again: tuple[Table | str | bytes | None, ...] = (),
    ) -> int:
        argv = ["decide", "--candidate", self.put("new", candidate)]
        argv += ["--incumbent", self.put("old", incumbent)]
        for i, table in enumerate(again):
            argv += ["--remeasure", self.put(f"again{i}", table)]
        return self.run(*argv, *words)

    def run(self, *argv: str) -> int:
        code = main(argv)
        self.stdout, self.stderr = self._capsys.readouterr()
        return code


@pytest.fixture
def desk(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Desk:
    return Desk(tmp_path, capsys)


@pytest.mark.parametrize(
    ("candidate", "code", "decision"),
    [
        (all_at(103.0), 0, "ACCEPTED"),
        (gemm_table([110.0, 110.0, 96.0]), 0, "ACCEPTED_WITH_NOTE"),
        (gemm_table([120.0] * 3, checks=["PASS", "FAIL", "PASS"]), 1, "REPAIR"),
        (gemm_table([120.0] * 3, checks=["PASS", "PASS", "ERROR"]), 1, "REPAIR"),
        (gemm_table([110.0, 110.0, 95.0]), 8, "ROLLED_BACK"),
        (all_at(99.0), 8, "ROLLED_BACK"),
        (all_at(100.0), 8, "ROLLED_BACK"),
        (gemm_table([120.0, 120.0, float("nan")]), 8, "ROLLED_BACK"),
        (all_at(101.0), 11, "INCOMPLETE"),
        (gemm_table([120.0, 120.0]), 11, "INCOMPLETE"),
    ],
)
def test_the_exit_code_and_the_first_words_are_the_verdict(
    desk: Desk, candidate: Table, code: int, decision: str
) -> None:
    assert desk.decide(candidate) == code
    assert desk.stdout.startswith(f"{decision} (")
    assert "next: " in desk.stdout
    assert desk.stderr == ""


def test_the_text_names_the_metric_its_values_and_its_change(desk: Desk) -> None:
    desk.decide(gemm_table([520.0] * 3, [258.0] * 3), incumbent=BOTH_OLD)
    assert "Combined Step TFLOPS: 300.0 -> 310.1  +3.36 %" in desk.stdout.splitlines()


def test_a_small_gain_is_accepted_once_it_was_measured_again(desk: Desk) -> None:
    again = tuple(map(all_at, (101.9, 101.4, 101.8)))
    assert desk.decide(all_at(101.9), again=again) == 0
    assert "re-measured: +1.90 %, +1.40 %, +1.80 %" in desk.stdout


def test_a_small_gain_that_is_not_confirmed_is_inconclusive(desk: Desk) -> None:
    again = tuple(map(all_at, (100.2, 101.9, 103.6)))
    assert desk.decide(all_at(101.5), again=again) == 9
    assert desk.stdout.startswith("INCONCLUSIVE (")


def test_json_is_the_verdict_and_nothing_else(desk: Desk) -> None:
    assert desk.decide(gemm_table([110.0, 110.0, 95.0]), "--json") == 8
    verdict = Verdict.model_validate_json(desk.stdout)
    assert verdict.decision == "ROLLED_BACK"
    assert (verdict.compare, verdict.policy) == ("stored", "primus")
    assert [shape.status for shape in verdict.shapes] == ["improved", "improved", "regressed"]
    document = json.loads(desk.stdout)
    assert document["schema_version"] == 1
    assert document["aggregate"]["low_pct"] is None
    assert document["shapes"][2]["dims"] == {"B": 1, "M": 768, "N": 768, "K": 768}


def test_json_of_an_undecided_verdict_is_a_verdict_too(desk: Desk) -> None:
    assert desk.decide(gemm_table([120.0]), "--json") == 11
    assert [shape["check"] for shape in json.loads(desk.stdout)["shapes"]] == ["MISSING"] * 2


def test_the_combined_step_is_judged_where_every_row_has_a_backward(desk: Desk) -> None:
    assert desk.decide(gemm_table([600.0] * 3, [235.0] * 3), incumbent=BOTH_OLD) == 8
    assert desk.decide(gemm_table([520.0] * 3, [258.0] * 3), incumbent=BOTH_OLD) == 0


def test_the_forward_metric_is_judged_where_a_row_has_none(desk: Desk) -> None:
    old = table_of([gemm_row(256, 100.0, 50.0), gemm_row(512, 100.0)])
    new = table_of([gemm_row(256, 110.0, 40.0), gemm_row(512, 110.0)])
    assert desk.decide(new, "--json", incumbent=old) == 0
    assert json.loads(desk.stdout)["aggregate"]["metric"] == "Forward TFLOPS"


BY_SIZE = ("--classes", "M")
DIVERGED = gemm_table([90.0, 110.0, 110.0])


def test_classes_may_split(desk: Desk) -> None:
    assert desk.decide(DIVERGED, *BY_SIZE) == 8
    assert desk.stdout.startswith("SPLIT (the classes diverge: 'M=512' (+10.0 %)")
    assert "class M=256: 100.0 -> 90.00  -10.0 %" in desk.stdout.splitlines()
    assert "leave 'M=256' on the old one" in desk.stdout


def test_a_class_may_be_the_target(desk: Desk) -> None:
    only_one = gemm_table([100.0, 104.0, 100.0])
    assert desk.decide(only_one) == 11, "1.3 % of the whole lies inside the noise"
    assert desk.decide(only_one, "--classes", "M, K", "--target-class", "K=512, M=512") == 0
    assert "class M=512, K=512 (target): 100.0 -> 104.0  +4.00 %" in desk.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--classes", "heads"), "classes: 'heads' is no dim of the cases (allowed: B, M, N, K)"),
        ((*BY_SIZE, "--target-class", "M=1"), "'M=1' is no class (allowed: M=256, M=512, M=768)"),
        (("--target-class", "M=256"), "'M=256' is no class"),
    ],
)
def test_classes_that_there_are_none_of_are_refused(
    desk: Desk, words: tuple[str, ...], says: str
) -> None:
    assert desk.decide(DIVERGED, *words) == 4
    assert desk.stdout == "" and says in desk.stderr


def test_a_row_that_lost_its_backward_is_not_accepted(desk: Desk) -> None:
    assert desk.decide(gemm_table([400.0] * 3), incumbent=BOTH_OLD) == 8


def test_a_primary_metric_may_be_named(desk: Desk) -> None:
    new = gemm_table([600.0] * 3, [235.0] * 3)
    assert desk.decide(new, "--primary", "Forward TFLOPS", incumbent=BOTH_OLD) == 0
    both = "Forward TFLOPS,Backward TFLOPS"
    assert desk.decide(new, "--primary", both, incumbent=BOTH_OLD) == 8


def test_a_policy_may_be_named_or_given_as_a_file(desk: Desk, tmp_path: Path) -> None:
    assert desk.decide(all_at(101.5), "--policy", "kernel-opt") == 0
    mine = tmp_path / "mine.yaml"
    mine.write_text("shape_gate_pct: 3\n")
    traded = gemm_table([120.0, 120.0, 96.0])
    assert desk.decide(traded, "--policy", str(mine)) == 8
    assert desk.decide(traded) == 0


def test_an_equal_kernel_is_kept_for_a_stated_benefit(desk: Desk) -> None:
    assert desk.decide(OLD, "--extra-benefit", "half the registers") == 0
    assert "half the registers" in desk.stdout


BAD_FILES: dict[str, str | bytes | None] = {
    "missing": None,
    "empty": "",
    "a header only": GEMM_HEADER + "\n",
    "truncated": text_of(OLD)[:-20],
    "without its last line end": text_of(OLD)[:-1],
    "not UTF-8": text_of(OLD).encode() + b"\xff\n",
    "no table": "a picture\n",
    "ragged": text_of(OLD).replace("case512,1,", "case512,"),
    "with a doubled row": text_of(OLD) + text_of(OLD).splitlines(keepends=True)[1],
    "with a doubled column": text_of(OLD).replace("out_snr", "label", 1),
    "with an unknown Check": text_of(OLD).replace("PASS", "SKIP", 1),
    "with a word for a number": text_of(OLD).replace("100.0", "fast"),
}


def place(role: str) -> Callable[[Desk, str | bytes | None], int]:
    def decide(desk: Desk, content: str | bytes | None) -> int:
        if role == "new":
            return desk.decide(content)
        if role == "old":
            return desk.decide(all_at(101.9), incumbent=content)
        return desk.decide(all_at(101.9), again=(content,))

    return decide


@pytest.mark.parametrize("role", ["new", "old", "again0"])
@pytest.mark.parametrize("fault", BAD_FILES)
def test_a_file_that_cannot_be_used_is_named_in_one_message_and_there_is_no_verdict(
    desk: Desk, role: str, fault: str
) -> None:
    assert place(role)(desk, BAD_FILES[fault]) == 4
    assert desk.stdout == ""
    assert desk.stderr.startswith("ERROR: ")
    assert len(desk.stderr.splitlines()) == 1 and f"{role}.csv" in desk.stderr


DRIFTED = {
    "renamed": text_of(all_at(120.0)).replace("db_snr", "dw_snr"),
    "reordered": text_of(all_at(120.0)).replace("da_snr,db_snr", "db_snr,da_snr"),
    "missing": text_of(all_at(120.0)).replace(",db_snr", "").replace(",,\n", ",\n"),
    "extra": text_of(all_at(120.0)).replace("db_snr", "db_snr,more").replace(",,\n", ",,,\n"),
}


@pytest.mark.parametrize("drift", DRIFTED)
def test_a_drifted_header_is_named_and_decides_nothing(desk: Desk, drift: str) -> None:
    assert desk.decide(DRIFTED[drift]) == 4
    assert desk.stdout == ""
    assert "the schema drifted" in desk.stderr
    assert "db_snr" in desk.stderr and "new.csv" in desk.stderr
    assert place("again0")(desk, DRIFTED[drift]) == 4 and "again0.csv" in desk.stderr


def test_an_extra_or_changed_case_is_a_changed_case_set(desk: Desk) -> None:
    assert desk.decide(gemm_table([120.0] * 4)) == 4
    assert "the case set changed" in desk.stderr and "M=1024" in desk.stderr


def test_an_incumbent_that_does_not_pass_is_refused(desk: Desk) -> None:
    failing = gemm_table([100.0] * 3, checks=["PASS", "FAIL", "PASS"])
    assert desk.decide(all_at(120.0), incumbent=failing) == 4
    assert "old.csv" in desk.stderr and "'case512' is FAIL" in desk.stderr


@pytest.mark.parametrize(
    ("words", "offender"),
    [
        (("--primary", "Forward GB/s"), "'Forward GB/s'"),
        (("--primary", "out_snr"), "'out_snr'"),
        (("--policy", "primos"), "'primos'"),
        (("--polecat", "primus"), "--polecat"),
        (("--json=yes",), "--json"),
    ],
)
def test_an_option_that_cannot_be_used_is_named(
    desk: Desk, words: tuple[str, ...], offender: str
) -> None:
    assert desk.decide(all_at(103.0), *words) == 4
    assert offender in desk.stderr
    assert desk.stdout == ""


def test_both_files_have_to_be_given(desk: Desk) -> None:
    assert desk.run("decide", "--candidate", desk.put("new", OLD)) == 4
    assert "--incumbent" in desk.stderr


def test_help_shows_an_example(desk: Desk) -> None:
    assert desk.run("decide", "--help") == 0
    assert "example:\n  kopt decide --candidate" in desk.stdout


def test_windows_line_ends_are_read(desk: Desk) -> None:
    assert desk.decide(text_of(all_at(103.0)).replace("\n", "\r\n")) == 0


def test_no_file_is_written_or_changed(desk: Desk, tmp_path: Path) -> None:
    desk.decide(all_at(101.9), "--json", again=(all_at(101.9),))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {
        "new.csv": text_of(all_at(101.9)),
        "old.csv": text_of(OLD),
        "again0.csv": text_of(all_at(101.9)),
    }


def test_a_process_of_its_own_exits_with_the_code_and_imports_nothing_heavy(
    tmp_path: Path,
) -> None:
    new, old = (
        write_table(tmp_path / "new.csv", all_at(99.0)),
        write_table(tmp_path / "old.csv", OLD),
    )
    program = (
        "import sys; from pytest_kopt.cli.main import main; code = main(sys.argv[1:]); "
        "heavy = {'torch', 'triton', 'pandas', 'git', 'numpy'} & set(sys.modules); "
        "print(sorted(heavy), file=sys.stderr); raise SystemExit(code)"
    )
    words = ["decide", "--candidate", str(new), "--incumbent", str(old)]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 8
    assert done.stderr.strip() == "[]"
