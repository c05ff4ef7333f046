from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history.trend import figures
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.ledger import AnyEvent, PairedChange, Trend
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.notes import Notes
from pytest_kopt.campaign.state import fold
from pytest_kopt.decide.verdict import Decision
from pytest_kopt.schema.metrics import Metric
from pytest_kopt.show.files import projections, summary
from tests.builders import NOW, attempt_events, gemm_table, manifest_document, metric_table

COLUMNS = (
    "| Round | Status | Description | Fwd Avg TFLOPS | Fwd Peak TFLOPS | Bwd Avg TFLOPS "
    "| Bwd Peak TFLOPS | Combined Step TFLOPS | vs Baseline | Key Finding | Decision |"
)


def both_ways(forward: float, backward: float) -> Trend:
    return Trend(
        unit="TFLOPS",
        forward_average=forward,
        forward_peak=forward * 1.5,
        backward_average=backward,
        backward_peak=backward * 1.5,
        combined=6 / (2 / forward + 4 / backward),
    )


def forward_only(forward: float) -> Trend:
    return Trend(unit="TFLOPS", forward_average=forward, forward_peak=forward, combined=forward)


BASELINE = attempt_events(1, Decision.BASELINE, trend=both_ways(290.0, 145.0))
CAMPAIGN: list[AnyEvent] = [
    *BASELINE,
    *attempt_events(
        2,
        Decision.ACCEPTED,
        trend=both_ways(305.0, 152.0),
        notes=Notes(summary="wider loads", key_finding="the loads were narrow"),
    ),
    *attempt_events(3, Decision.REPAIR),
    *attempt_events(
        3,
        Decision.ROLLED_BACK,
        attempt=2,
        trend=both_ways(280.0, 140.0),
        notes=Notes(change="bigger tiles", root_cause="spilled registers", next="smaller tiles"),
    ),
    *attempt_events(
        4,
        Decision.ACCEPTED_WITH_NOTE,
        trend=both_ways(320.0, 160.0),
        notes=Notes(hypothesis="hide latency"),
    ),
]


def text_of(events: Sequence[AnyEvent], before: str = "") -> str:
    return summary.missing_text(before, fold(events))


def rows_of(events: Sequence[AnyEvent]) -> list[list[str]]:
    """Return the cells of the trend's rows, without the header."""
    lines = [line for line in text_of(events).splitlines() if re.match(r"\| \d", line)]
    return [re.split(r"(?<!\\)\|", line.strip("| ")) for line in lines]


def cells(events: Sequence[AnyEvent], round: int) -> dict[str, str]:
    names = COLUMNS.strip("| ").split(" | ")
    values = [cell.strip() for cell in rows_of(events)[round - 1]]
    return dict(zip(names, values, strict=True))


class TestTrend:
    def test_the_columns_are_exactly_the_contracts(self) -> None:
        lines = text_of(CAMPAIGN).splitlines()
        assert COLUMNS in lines
        rule = lines[lines.index(COLUMNS) + 1]
        assert re.fullmatch(r"\|(-+\|){11}", rule)

    def test_each_decided_round_has_a_row_of_figures_with_three_decimals(self) -> None:
        assert text_of(CAMPAIGN).splitlines()[-4:] == [
            "| 1 | BASELINE | Baseline | 290.000 | 435.000 | 145.000 | 217.500 | 174.000 "
            "| — | why round 1 is BASELINE | BASELINE |",
            "| 2 | ACCEPTED | wider loads | 305.000 | 457.500 | 152.000 | 228.000 | 182.520 "
            "| step +4.896%, fwd +5.172%, bwd +4.828% | the loads were narrow | ACCEPTED |",
            "| 3 | ROLLBACK | bigger tiles | 280.000 | 420.000 | 140.000 | 210.000 | 168.000 "
            "| step -3.448%, fwd -3.448%, bwd -3.448% | why round 3 is ROLLED_BACK | ROLLED_BACK |",
            "| 4 | ACCEPTED | hide latency | 320.000 | 480.000 | 160.000 | 240.000 | 192.000 "
            "| step +10.345%, fwd +10.345%, bwd +10.345% | why round 4 is ACCEPTED_WITH_NOTE "
            "| ACCEPTED_WITH_NOTE |",
        ]

    @pytest.mark.parametrize(
        ("decision", "word"),
        [
            (Decision.ACCEPTED, "ACCEPTED"),
            (Decision.ACCEPTED_WITH_NOTE, "ACCEPTED"),
            (Decision.ROLLED_BACK, "ROLLBACK"),
            (Decision.INCONCLUSIVE, "ROLLBACK"),
            (Decision.SPLIT, "ROLLBACK"),
            (Decision.REJECTED_OVERFIT, "ROLLBACK"),
        ],
    )
    def test_a_status_is_baseline_accepted_or_rollback(self, decision: Decision, word: str) -> None:
        assert cells([*BASELINE, *attempt_events(2, decision)], 2)["Status"] == word

    @pytest.mark.parametrize(
        "decision",
        [Decision.ROLLED_BACK, Decision.INCONCLUSIVE, Decision.REJECTED_OVERFIT, Decision.ACCEPTED],
    )
    def test_a_column_beside_the_frozen_ones_has_the_decision(self, decision: Decision) -> None:
        found = cells([*BASELINE, *attempt_events(2, decision)], 2)
        assert list(found)[-1] == "Decision" and found["Decision"] == decision

    def test_a_file_from_before_goes_on_without_that_column(self) -> None:
        old = text_of([*BASELINE]).replace(" Decision |", "").replace(" BASELINE |\n", "\n")
        events = [*BASELINE, *attempt_events(2, Decision.INCONCLUSIVE)]
        (row,) = summary.missing_text(old, fold(events)).splitlines()
        assert row.endswith("| why round 2 is INCONCLUSIVE |")

    def test_a_kernel_without_a_backward_has_dashes_and_its_forward_as_step(self) -> None:
        events = [
            *attempt_events(1, Decision.BASELINE, trend=forward_only(100.0)),
            *attempt_events(2, Decision.ACCEPTED, trend=forward_only(103.0)),
        ]
        found = cells(events, 2)
        assert (found["Bwd Avg TFLOPS"], found["Bwd Peak TFLOPS"]) == ("-", "-")
        assert found["Combined Step TFLOPS"] == found["Fwd Avg TFLOPS"] == "103.000"
        assert found["vs Baseline"] == "step +3.000%, fwd +3.000%, bwd —"

    def test_a_round_that_was_not_measured_has_dashes(self) -> None:
        found = cells([*BASELINE, *attempt_events(2, Decision.ROLLED_BACK)], 2)
        assert found["Fwd Avg TFLOPS"] == found["Combined Step TFLOPS"] == "-"
        assert found["vs Baseline"] == "step —, fwd —, bwd —"

    def test_an_open_round_has_no_row_yet(self) -> None:
        assert len(rows_of([*BASELINE, *attempt_events(2, Decision.REPAIR)])) == 1
        assert len(rows_of([*BASELINE, *attempt_events(2, Decision.INCOMPLETE)])) == 1
        assert text_of([]) == ""

    def test_paired_rounds_are_chained_by_their_products(self) -> None:
        def paired(round: int, decision: Decision, gain: float) -> list[AnyEvent]:
            change = PairedChange(step_pct=gain, forward_pct=gain * 2)
            return attempt_events(
                round, decision, trend=forward_only(100.0 + 50 * round), paired=change
            )

        events = [
            *BASELINE,
            *paired(2, Decision.ACCEPTED, 10.0),
            *paired(3, Decision.ROLLED_BACK, -5.0),
            *paired(4, Decision.ACCEPTED, 10.0),
        ]
        assert cells(events, 2)["vs Baseline"] == "step +10.000%, fwd +20.000%, bwd —"
        assert cells(events, 3)["vs Baseline"] == "step +4.500%, fwd +8.000%, bwd —"
        assert cells(events, 4)["vs Baseline"] == "step +21.000%, fwd +44.000%, bwd —"

    def test_what_the_author_wrote_stays_in_its_cell(self) -> None:
        notes = Notes(summary="a | b\nc", key_finding="| 7 | x |\n\n| 8 |")
        found = rows_of([*BASELINE, *attempt_events(2, Decision.ACCEPTED, notes=notes)])
        assert len(found) == 2
        assert len(found[1]) == 11
        assert found[1][2].strip() == r"a \| b c"

    def test_text_only_grows(self) -> None:
        text = ""
        for end in range(len(CAMPAIGN) + 1):
            more = text_of(CAMPAIGN[:end], text)
            assert text_of(CAMPAIGN[:end], text + more) == ""
            text += more
        assert text == text_of(CAMPAIGN)


class TestFigures:
    def test_averages_are_geometric_and_peaks_are_single_cases_of_the_rows_that_pass(self) -> None:
        table = gemm_table(
            [100.0, 400.0, 900.0], [50.0, 200.0, 900.0], checks=["PASS", "PASS", "FAIL"]
        )
        found = figures(table)
        assert found.unit == "TFLOPS"
        assert found.forward_average == pytest.approx(200.0)
        assert found.forward_peak == 400.0
        assert found.backward_average == pytest.approx(100.0)
        assert found.backward_peak == 200.0
        per_case = [6 / (2 / f + 4 / b) for f, b in ((100.0, 50.0), (400.0, 200.0))]
        assert found.combined == pytest.approx(math.sqrt(per_case[0] * per_case[1]))

    def test_without_a_backward_the_step_is_the_forward(self) -> None:
        found = figures(gemm_table([100.0, 400.0]))
        assert (found.backward_average, found.backward_peak) == (None, None)
        assert found.combined == found.forward_average

    def test_a_table_in_which_nothing_passes_has_no_figures(self) -> None:
        found = figures(gemm_table([100.0], checks=["FAIL"]))
        assert (found.forward_average, found.forward_peak, found.combined) == (None, None, None)

    def test_the_best_of_a_time_is_the_shortest(self) -> None:
        table = metric_table("Time (ms)", [1.0, 4.0])
        found = figures(table, Metric("Time (ms)", "lower"))
        assert (found.unit, found.forward_peak) == ("Time (ms)", 1.0)
        assert found.forward_average == pytest.approx(2.0)


class Book:
    """A campaign directory whose ledger is written round by round."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout = Layout(root / "agent" / "workspace" / "softmax")
        manifests.save(self.layout.manifest, Manifest.model_validate(manifest_document()))

    def write(self, *events: AnyEvent) -> None:
        """Append events and what the logs lack of them."""
        ledger.append(self.layout.ledger, *events)
        self.refresh()

    def refresh(self) -> None:
        projections.append_logs(self.campaign())

    def campaign(self) -> Campaign:
        return Campaign(self.layout, self.root)

    @property
    def logs(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.layout.trend.parent.iterdir()}

    @property
    def log(self) -> str:
        return self.layout.optimize_log.read_text()


@pytest.fixture
def book(tmp_path: Path) -> Book:
    return Book(tmp_path)


class TestLogs:
    def test_both_files_keep_every_byte_they_had(self, book: Book) -> None:
        book.write(*BASELINE)
        for event in CAMPAIGN[len(BASELINE) :]:
            before = book.logs
            book.write(event)
            assert all(text.startswith(before[name]) for name, text in book.logs.items())
        before = book.logs
        book.write(ledger.Ended(time=NOW, how="stopped"))
        assert all(text.startswith(before[name]) for name, text in book.logs.items())

    def test_an_entry_has_the_notes_that_came_before_the_round(self, book: Book) -> None:
        """What `kopt note` was told was in the summary and not in the log."""
        noted = Notes(change="wider loads", hypothesis="the loads are narrow")
        book.write(*BASELINE, ledger.Note(time=NOW, round=2, notes=noted))
        book.write(*attempt_events(2, Decision.ACCEPTED))
        assert b"ACCEPTED \xe2\x80\x94 wider loads" in book.logs["optimize.md"]
        assert b"- Hypothesis: the loads are narrow" in book.logs["optimize.md"]

    @pytest.mark.parametrize("addition", ["\nCorrection: x\n", "\r\nCorrection\r\n", "no line end"])
    def test_what_somebody_added_stays_byte_for_byte(self, book: Book, addition: str) -> None:
        book.write(*BASELINE)
        for path in (book.layout.trend, book.layout.optimize_log):
            with path.open("ab") as stream:
                stream.write(addition.encode())
        before = book.logs
        book.write(*CAMPAIGN[len(BASELINE) :])
        for name, text in book.logs.items():
            assert text.startswith(before[name])
            assert len(text) > len(before[name])
        after = book.logs
        book.refresh()
        assert book.logs == after

    def test_refreshing_again_adds_nothing(self, book: Book) -> None:
        book.write(*CAMPAIGN)
        before = book.logs
        book.refresh()
        assert book.logs == before

    def test_a_log_that_was_lost_is_written_again_as_it_was(self, book: Book) -> None:
        for event in CAMPAIGN:
            book.write(event)
        before = book.logs
        for path in book.layout.trend.parent.iterdir():
            path.unlink()
        book.refresh()
        assert book.logs == before

    def test_the_log_has_the_contracts_sections(self, book: Book) -> None:
        book.write(*CAMPAIGN, ledger.Ended(time=NOW, how="stopped"))
        headings = [line.lstrip("# ") for line in book.log.splitlines() if line.startswith("#")]
        for section in (
            "Basic Information",
            "Baseline",
            "Optimization History",
            "Current Best",
            "Directions to Try",
            "Verified Ineffective Directions",
            "Termination Check",
        ):
            assert section in headings

    def test_basic_information_says_what_the_campaign_is_about(self, book: Book) -> None:
        book.write(*BASELINE)
        for line in (
            "- Target operator: softmax",
            "- Implementation language: TRITON",
            "- Backend: TRITON",
            "- Target GPU: sm_90",
            "- Campaign: softmax",
            f"- Start time: {NOW}",
        ):
            assert line in book.log.splitlines()

    def test_every_attempt_has_one_entry_with_its_decision_and_reason(self, book: Book) -> None:
        book.write(*CAMPAIGN)
        entries = re.findall(r"^### round-(\d+) attempt (\d+) — (\w+)", book.log, re.MULTILINE)
        assert entries == [
            ("2", "1", "ACCEPTED"),
            ("3", "1", "REPAIR"),
            ("3", "2", "ROLLED_BACK"),
            ("4", "1", "ACCEPTED_WITH_NOTE"),
        ]
        assert "- Decision: ROLLED_BACK: why round 3 is ROLLED_BACK" in book.log

    def test_only_what_was_rolled_back_is_a_verified_ineffective_direction(
        self, book: Book
    ) -> None:
        book.write(*CAMPAIGN)
        section = book.log.split("#### Verified Ineffective Directions\n\n")
        assert len(section) == 2
        assert section[1].startswith("- bigger tiles (round-3): spilled registers\n")
        assert "- [ ] smaller tiles" in book.log.partition("#### Directions to Try")[2]

    def test_what_was_inconclusive_was_not_verified_to_be_ineffective(self, book: Book) -> None:
        book.write(*BASELINE, *attempt_events(2, Decision.INCONCLUSIVE))
        assert "round-2 attempt 1 — INCONCLUSIVE" in book.log
        assert "Ineffective" not in book.log

    def test_the_termination_check_says_which_condition_held(self, book: Book) -> None:
        book.write(*BASELINE, ledger.Ended(time=NOW, how="stopped"))
        block = book.log.partition("## Termination Check")[2]
        assert [line[:4] for line in block.splitlines() if line.startswith("- T")] == [
            "- T1",
            "- T2",
            "- T3",
            "- T4",
        ]
        assert "T4 user requested stop: ✅" in block
        assert "Satisfied condition(s): T4" in block

    def test_times_are_written_to_the_minute(self, book: Book) -> None:
        book.write(*CAMPAIGN)
        times = re.findall(r"^- (?:Start time|Time): (.+)$", book.log, re.MULTILINE)
        assert len(times) == 6
        assert all(re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", time) for time in times)

    def test_nothing_is_missing_from_a_log_that_has_every_entry(self, book: Book) -> None:
        book.write(*CAMPAIGN)
        assert projections.missing_entries(book.log, book.campaign()) == ""
