"""`kopt report`: what the file holds, what it never holds, and how it looks in a browser."""

from __future__ import annotations

import base64
import gzip
import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_kopt.campaign import ledger
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.history import trend
from pytest_kopt.cli.main import main
from pytest_kopt.decide.case_verdict import Shape
from pytest_kopt.decide.verdict import Aggregate, Decision, Verdict
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.figures import changed, figure, interval
from pytest_kopt.roofline import Limits, roofline
from pytest_kopt.show.report import charts, page
from pytest_kopt.show.report.charts import case_table
from pytest_kopt.show.terminal import verdict_lines
from pytest_kopt.show.words import CASES, case_status, rows, with_text
from tests.builders import NOW
from tests.campaigns import status_of
from tests.chromium import Page, chromium
from tests.whole_campaign import KERNEL, RACED, a_campaign

pytest.importorskip("vl_convert")

EVIL = "<script>window.pwned=1</script>"
#: Text that would run, end its surroundings or be an expression, wherever data can stand.
HOSTILE: dict[str, Any] = {
    "label": EVIL + "{size}'\"&</td>",
    "summary": "</textarea>"
    + EVIL
    + "<img src=x onerror=window.pwned=1> {{{{ 7*7 }}}} round {round}",
    "kernel": f"# {EVIL}\n# </pre><img src=x onerror=window.pwned=1>\n",
}
LIMITS = Limits(790.0, 4.3, 0.0, ("measured", "measured"))
ROOFLINES = [
    roofline(EVIL, "forward", flops=2e9, nbytes=2e7, time_ms=0.01, limits=LIMITS),
    roofline("small", "backward", flops=4e9, nbytes=4e8, time_ms=0.2, limits=LIMITS),
]


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return a_campaign(
        tmp_path_factory.mktemp("hostile"), rounds=7, shapes=3, rooflines=ROOFLINES, **HOSTILE
    )


@pytest.fixture(scope="module")
def html(campaign: Campaign) -> str:
    return page.campaign_page(campaign)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("profile")) as tab:
        yield tab


def unpacked(html: str, id: str) -> Any:
    found = re.search(rf'<script type="text/plain" id="{id}">([^<]*)</script>', html)
    assert found is not None
    return json.loads(gzip.decompress(base64.b64decode(found[1])))


def verdicts(campaign: Campaign) -> dict[int, Verdict]:
    return {
        number: Verdict.model_validate_json(campaign.layout.verdict(number).read_text())
        for number in campaign.state.rounds
    }


def test_nothing_of_the_data_is_markup(html: str) -> None:
    assert EVIL not in html
    assert "<img" not in html and "onerror=window" not in re.sub(r"&lt;.*?&gt;", "", html)
    assert "&lt;script&gt;window.pwned=1&lt;/script&gt;" in html, "it is shown, as text"
    assert "{{ 7*7 }}" in html, "and is no template"


def test_the_file_stands_alone(html: str) -> None:
    frame = re.sub(r'<script type="text/plain".*?</script>', "", html, flags=re.DOTALL)
    assert re.findall(r"""<[^>]*(?:src|href)=(\S+)""", frame) == ['"data:,">']
    assert "http" not in frame
    assert "refresh" not in frame


def test_the_final_report_stands_in_it(tmp_path: Path) -> None:
    own = a_campaign(tmp_path, rounds=3, shapes=1)
    assert "Final report" not in page.campaign_page(own)
    ledger.append(
        own.layout.ledger,
        ledger.Final(
            time=NOW,
            best=2,
            decision=Decision.ACCEPTED,
            reason="it stands",
            evidence={},
            report=trend.compose(own),
        ),
    )
    own.read_again()
    found = page.campaign_page(own)
    table = re.findall(r"<h2>Final report</h2>.*?</table>", found, re.S)[0]
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", table)
    gain = own.state.rounds[2].verdict
    assert gain is not None and gain.aggregate is not None
    shown = changed(gain.aggregate.change_pct)
    assert cells[:5] == ["round-2", "K2", shown, shown, "ACCEPT-as-real"]
    assert "0.000 points below the product of the accepted gains" in found


def test_pairs_are_those_of_the_file(campaign: Campaign, html: str) -> None:
    import csv

    with open(campaign.layout.artifacts(2) / "pairs.csv", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["comparison"] == "candidate"]
    packed = unpacked(html, "pairs-2")
    assert sum(len(pairs) for found in packed.values() for pairs in found) == len(rows)
    first = rows[0]
    value = packed[first["label"]][0][0]
    gain = float(first["incumbent_ms"]) / float(first["candidate_ms"]) - 1
    assert (value >> 1) / 1e4 == pytest.approx(gain, abs=5.1e-5)
    assert value & 1 == (first["position"] == "BA")


def test_the_pairs_of_a_case_stand_with_the_interval_of_the_verdict(
    campaign: Campaign, html: str, browser: Page, tmp_path: Path
) -> None:
    rounds = {str(item["number"]): item for item in unpacked(html, "data")["rounds"]}
    verdict = verdicts(campaign)[2]
    assert rounds["2"]["changes"] == {
        shape.label: {"gain": shape.change_pct, "low": shape.low_pct, "high": shape.high_pct}
        for shape in verdict.shapes
    }
    file = tmp_path / "report.html"
    file.write_text(html)
    browser.open(file)
    browser.value("document.getElementById('round').value = '2'")
    browser.value("document.getElementById('round').onchange()")
    shape = verdict.shapes[0]
    assert shape.low_pct is not None and shape.high_pct is not None and shape.change_pct is not None
    zero, line, band = browser.value(
        "[...document.querySelectorAll('#pairs .mark-rule.role-mark line')].slice(0, 2).concat("
        " document.querySelector('#pairs .mark-rect.role-mark path')).map(mark => {"
        " const box = mark.getBoundingClientRect(); return [box.top, box.bottom]; })"
    )
    share = (shape.high_pct - shape.change_pct) / (shape.high_pct - shape.low_pct)
    assert band[0] + share * (band[1] - band[0]) == pytest.approx(sum(line) / 2, abs=2)
    share = shape.high_pct / (shape.high_pct - shape.low_pct)
    assert band[0] + share * (band[1] - band[0]) == pytest.approx(sum(zero) / 2, abs=2)
    legend = "[...document.querySelectorAll('#pairs .role-legend-label text')]"
    assert browser.value(f"{legend}.map(text => text.textContent)") == [
        *("all pairs, 95 % interval", "mean of a process"),
        *("candidate first", "current best first"),
    ]


def test_kernels_of_every_round_are_there(campaign: Campaign, html: str) -> None:
    kernels = unpacked(html, "kernels")
    for number in campaign.state.rounds:
        text = kernels["texts"][kernels["rounds"][str(number)][KERNEL]]
        assert text == (campaign.layout.snapshot(number) / KERNEL).read_text()


def test_the_oldest_pairs_give_way_to_the_limit(
    campaign: Campaign, html: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without = len(re.sub(r'<script type="text/plain" id="pairs.*', "", html).encode())
    newest = len(re.findall(r'id="pairs-7">([^<]*)', html)[0])
    monkeypatch.setattr(page, "LIMIT", without + 10_000 + newest + 150)
    small = page.campaign_page(campaign)
    assert re.findall(r'id="pairs-(\d+)"', small) == ["7"]
    assert "the rounds 2, 3, 4, 5 are left out" in small


@pytest.mark.parametrize("text", ["", "label\n", "a,b\n1,2\n", "\0", None])
def test_pairs_that_cannot_be_read_are_only_missing(
    tmp_path: Path, campaign: Campaign, text: str | None
) -> None:
    own = a_campaign(tmp_path, rounds=2, shapes=1)
    path = own.layout.artifacts(2) / "pairs.csv"
    path.unlink() if text is None else path.write_text(text)
    assert 'id="pairs-2"' not in page.campaign_page(own)


def test_the_command_writes_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    own = a_campaign(tmp_path, rounds=2, shapes=1)
    monkeypatch.chdir(tmp_path)
    assert main(["report", own.name, "-o", "out/report.html"]) == 0
    assert "report.html" in capsys.readouterr().out
    assert own.name in (tmp_path / "out/report.html").read_text()
    assert main(["report"]) == 0
    assert (own.layout.directory / "report.html").is_file()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.html"]


def test_several_campaigns_get_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    for name in ("first", "second"):
        a_campaign(tmp_path, name=name, rounds=3, shapes=1)
    monkeypatch.chdir(tmp_path)
    assert main(["report", "first", "second", "-o", "out/all.html"]) == 0
    index = (tmp_path / "out/all.html").read_text()
    for name in ("first", "second"):
        assert f'<a href="{name}.html">{name}</a>' in index
        assert name in (tmp_path / f"out/{name}.html").read_text()
    assert main(["report", "first", "second", "-o", "out/first.html"]) == ExitCode.USAGE


def test_without_a_round_there_is_nothing_to_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    own = a_campaign(tmp_path, rounds=1, shapes=1)
    own.layout.ledger.write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(["report", own.name]) == ExitCode.USAGE
    assert "no round is decided yet" in capsys.readouterr().err
    assert main(["report", "nobody"]) == ExitCode.USAGE


def test_the_gain_is_the_product_of_the_kept_rounds(campaign: Campaign, html: str) -> None:
    expected, kept = 1.0, []
    for number, verdict in verdicts(campaign).items():
        change = verdict.aggregate.change_pct if verdict.aggregate else None
        if verdict.decision.keeps:
            expected *= 1 + (change or 0.0) / 100
            kept.append((number, (expected - 1) * 100))
    rounds = {item["number"]: item for item in unpacked(html, "data")["rounds"]}
    for number, gain in kept:
        assert rounds[number]["over_baseline"] == pytest.approx(gain)
    assert f"<b>{changed(kept[-1][1])}</b> product of the kept gains" in html


def test_no_roofline_is_drawn_without_its_figures() -> None:
    assert charts.rooflines([]) is None
    known = ROOFLINES[0]
    assert charts.rooflines([known]) is not None
    assert charts.rooflines([known.model_copy(update={"attainable": None})]) is None
    assert charts.rooflines([known.model_copy(update={"unit": "GB/s"})]) is None


def test_rooflines_without_a_bound_are_one_sentence(tmp_path: Path) -> None:
    nothing = Limits(None, None, 0.0, ("no rate", "no bandwidth"))
    line = roofline("M256", "forward", flops=2e9, nbytes=2e7, time_ms=0.01, limits=nothing)
    text = page.campaign_page(a_campaign(tmp_path, rounds=2, shapes=1, rooflines=[line]))
    section = re.findall(r"<h2>Roofline</h2>.*?</section>", text, re.S)[0]
    assert "No round has a known roofline: the peaks no bandwidth, no rate are not known" in section
    assert "UNKNOWN" not in section and "<table" not in section


MARKS = """Object.fromEntries([...document.querySelectorAll('.chart')].map(c => [
    c.id, c.querySelectorAll('.mark-symbol path, .mark-rect path, .mark-line path').length]))"""
INTERVALS = """[...document.querySelectorAll('#trend .mark-rule.role-mark line')].filter(
    line => Number(line.getAttribute('x2'))).length"""
#: The intervals' ends in the trend: the right of the last, and of the plot.
ENDS = """(() => {
    const right = box => box.getBoundingClientRect().right;
    const ticks = [...document.querySelectorAll('#trend .mark-rect.role-mark path')].map(right);
    return [ticks.length, Math.max(...ticks), right(document.querySelector('#trend svg'))]; })()"""
#: The names of rounds in the trend; and those that are cut off, or cover the one before.
LABELS = "[...document.querySelectorAll('#trend [aria-label^=Y-axis] .role-axis-label text')]"
NAMES = f"{LABELS}.map(text => text.textContent)"
HIDDEN = f"""(() => {{
    const boxes = {LABELS}.map(text => text.getBoundingClientRect());
    const {{ left }} = document.getElementById('trend').getBoundingClientRect();
    return {NAMES}.filter(
        (_, i) => boxes[i].left < left || i && boxes[i].top < boxes[i - 1].bottom);
}})()"""


def test_in_a_browser_every_chart_is_drawn_and_nothing_complains(
    campaign: Campaign, browser: Page, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(page.campaign_page(campaign))
    for width in (1280, 400):
        colours = set()
        for scheme in ("light", "dark"):
            browser.look(width, scheme)
            browser.open(file)
            browser.value("document.getElementById('round').value = '2'")
            browser.value("document.getElementById('round').onchange()")
            marks = browser.value(MARKS)
            assert set(marks) == {"trend", "pairs", "roofline"}
            assert all(count > 0 for count in marks.values()), marks
            assert browser.value(INTERVALS) == 5, "an interval for every compared round"
            ends, last, edge = browser.value(ENDS)
            assert ends == 10 and edge - last < 90, "each is marked, and the axis ends with them"
            shown = browser.value(f"{NAMES}.map(name => name.split(' ')[0])")
            assert shown == [str(number) for number in range(1, 8)]
            assert browser.value(HIDDEN) == [], "every name can be read"
            assert browser.value("document.documentElement.scrollWidth") <= width
            colours.add(browser.value("getComputedStyle(document.body).backgroundColor"))
            browser.screenshot(tmp_path / f"{width}-{scheme}.png", height=900)
        assert len(colours) == 2
    assert browser.complaints == []
    assert browser.value("typeof window.pwned") == "undefined"
    diff = browser.value("document.getElementById('diff').textContent")
    assert "- tile_7 = 1" in diff and "+ tile_7 = 7" in diff and "tile_100" not in diff
    browser.value("document.getElementById('left').value = '7'")
    browser.value("document.getElementById('left').onchange()")
    assert browser.value("document.getElementById('diff').textContent") == "no difference"


def test_the_index_is_drawn(tmp_path: Path, browser: Page, campaign: Campaign) -> None:
    file = tmp_path / "index.html"
    file.write_text(page.index_page([campaign], ["a b.html"]))
    browser.open(file)
    assert browser.value(MARKS)["comparison"] > 0
    assert browser.value("document.querySelector('a').getAttribute('href')") == "a%20b.html"
    assert browser.complaints == []


def test_terminal_json_and_report_show_the_same_numbers(
    campaign: Campaign, browser: Page, tmp_path: Path
) -> None:
    file = tmp_path / "report.html"
    file.write_text(page.campaign_page(campaign))
    browser.open(file)
    for number, verdict in verdicts(campaign).items():
        browser.value(f"document.getElementById('round').value = '{number}'")
        browser.value("document.getElementById('round').onchange()")
        cells = browser.value(
            "[...document.querySelectorAll('#detail tr')].map("
            "r => [...r.cells].map(c => c.textContent))"
        )
        terminal = "\n".join(verdict_lines(verdict))
        shown = {row[0]: row for row in cells}
        total = verdict.aggregate
        assert total is not None
        if total.change_pct is not None:
            values = [figure(total.incumbent), figure(total.candidate)]
            change = changed(total.change_pct)
            bounds = interval(total.change_pct, total.low_pct, total.high_pct)
            assert [total.metric, *values, change, bounds] == shown[total.metric]
            for text in (*values, change, bounds):
                assert text in terminal
            row = browser.value(
                f"[...document.querySelectorAll('#rounds tbody tr')][{number - 1}].textContent"
            )
            assert change in row and bounds in row
        for found in verdict.classes:
            row = shown[found.name]
            values = [str(found.cases), figure(found.incumbent), figure(found.candidate)]
            bounds = interval(found.change_pct, found.low_pct, found.high_pct)
            told = [*values, changed(found.change_pct), bounds, found.status]
            assert row[1:] == [text for text in told if text], "without an empty column"
            assert f"class {found.name}: " in terminal and values[2] in terminal
        for shape in verdict.shapes:
            assert case_status(shape) in shown[shape.label]
            assert {shape.check, changed(shape.change_pct)} <= {*shown[shape.label]}
    assert ["step", "registers 40 → 64", "M256"] in cells
    assert ["sum", "gone, launches 1 → 0", "M256"] in cells
    assert ["fill", "added, launches 2, registers 16", "M256"] in cells
    for raced in RACED:
        change = changed(raced.change_pct)
        bounds = interval(raced.change_pct, raced.low_pct, raced.high_pct)
        row = [str(raced.place), raced.name, str(raced.decision), change, bounds, raced.reason]
        assert row in cells and row in summary_cells(campaign)
    assert status_of(campaign)["candidates"] == [raced.model_dump(mode="json") for raced in RACED]


def summary_cells(campaign: Campaign) -> list[list[str]]:
    """Return the rows of the tables in the last round's summary.md."""
    text = campaign.layout.summary(max(campaign.state.rounds)).read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.fixture(scope="module")
def big_page(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, float]:
    """Return the page of 119 rounds of 50 shapes, and the processor seconds that it took."""
    directory = tmp_path_factory.mktemp("big")
    big = a_campaign(
        directory, rounds=119, shapes=50, processes=8, kernel="x = 1  # the same\n" * 300
    )
    start = time.process_time()
    return page.campaign_page(big), time.process_time() - start


@pytest.mark.long
def test_the_report_of_119_rounds_of_50_shapes_holds_them_all(
    big_page: tuple[str, float], record_property: Callable[[str, object], None]
) -> None:
    text, seconds = big_page
    record_property("report, 119 rounds of 50 cases", seconds)
    assert len(text.encode()) <= 2_000_000
    assert "left out" not in text


@pytest.mark.long
def test_the_report_of_119_rounds_of_50_shapes_is_drawn(
    tmp_path: Path, browser: Page, big_page: tuple[str, float]
) -> None:
    file = tmp_path / "big.html"
    file.write_text(big_page[0])
    browser.look(1280, "light")
    browser.open(file)
    assert browser.value("document.querySelectorAll('#cases tbody tr').length") == 51
    assert browser.value("document.querySelectorAll('#cases thead th').length") == 52
    assert browser.complaints == []


def test_an_axis_is_logarithmic_where_gains_lie_far_apart() -> None:
    def rounds(*gains: float) -> list[dict[str, Any]]:
        return [
            {
                "number": i,
                "decision": "ACCEPTED",
                "change": "",
                "interval": "",
                "summary": "",
                "over_baseline": gain,
                "over_baseline_low": gain,
                "over_baseline_high": gain,
                "keeps": True,
            }
            for i, gain in enumerate(gains, start=1)
        ]

    near, far = (charts.trend(rounds(*gains), "GB/s") for gains in ((0, 3, 9), (0, 3, 1859.6)))
    axes = [chart["layer"][3]["encoding"]["x"] for chart in (near, far) if chart]
    assert "type" not in axes[0]["scale"] and axes[0]["title"].endswith("(%)")
    assert not axes[0]["scale"]["nice"] and not axes[1]["scale"]["nice"], "it ends with the data"
    assert axes[1]["scale"]["type"] == "log" and axes[1]["title"].endswith("(factor)")
    assert far is not None
    assert [round(value["gain"], 2) for value in far["data"]["values"]] == [1.0, 1.03, 19.6]
    lost = [*rounds(0, 3, 1), {**rounds(1)[0], "number": 4, "over_baseline": None}]
    lost[2]["keeps"] = lost[3]["keeps"] = False
    chart = charts.trend(lost, "GB/s")
    assert chart is not None
    *_, end = chart["data"]["values"]
    assert (end["round"], end["gain"], end["is_end"]) == (4, 3, True), "the kept line goes on"


def compared(number: int, *changes: float, keeps: bool = False) -> dict[str, Any]:
    """Return a round of a report, its cases `a`, `b` and so on, each sure to 1 %, the limit 5 %."""

    def figures(pct: float) -> dict[str, Any]:
        return {"change_pct": pct, "low_pct": pct - 1, "high_pct": pct + 1}

    def status(pct: float) -> Any:
        return "improved" if pct > 1 else "regressed" if pct < -6 else "unchanged"

    shapes = [
        Shape(label=label, dims={}, check="PASS", status=status(pct), **figures(pct))
        for label, pct in zip("abc", changes, strict=False)
    ]
    mean = sum(changes) / len(changes) if changes else 0.0
    verdict = Verdict(
        decision=Decision.INCONCLUSIVE,
        reason="",
        compare="paired",
        policy="primus",
        shapes=shapes,
        aggregate=Aggregate(metric="GB/s", **figures(mean)) if changes else None,
    )
    return {"number": number, "keeps": keeps, "verdict": verdict}


def texts(rounds: list[dict[str, Any]]) -> dict[str, list[str]]:
    return {name: [cell["text"] for cell in cells] for name, cells in case_table(rounds)[1]}


def test_the_table_of_cases_is_read_without_colours() -> None:
    rounds = [compared(1), compared(2, -0.5, 300.0), compared(3, -25.0, -3.75, 4.0)]
    assert texts(rounds) == {
        "all cases": ["▲ 2.50×", "▼ -8.25 %"],
        "a": ["= -0.50 %", "▼▼ -25.0 %"],
        "b": ["▲ 4.00×", "▼ -3.75 %"],
        "c": ["", "▲ +4.00 %"],
    }
    assert case_table(rounds)[1][1][1][0]["detail"] == "-0.50 % [-1.50, +0.50], no change shown"
    without = compared(2, 8.0)
    total = without["verdict"].aggregate.model_copy(update={"low_pct": None, "high_pct": None})
    without["verdict"] = without["verdict"].saying(aggregate=total)
    assert texts([without])["all cases"] == ["+8.00 %"], "without an interval it has no sign"


@pytest.mark.parametrize("pct", [0.7, 3.7])
def test_a_gain_and_a_loss_of_one_size_have_one_rule(pct: float) -> None:
    signs = {"▲": "▼", "=": "="}
    (up,), (down,) = (texts([compared(2, change)])["a"] for change in (pct, -pct))
    assert signs[up[0]] == down[0]


def test_dims_have_a_column_where_the_label_lacks_them() -> None:
    figures: dict[str, Any] = {"dims": {"M": 1, "N": 20}, "check": "PASS", "status": "unchanged"}
    said, short = (Shape(label=label, **figures) for label in ("gemm M=1 N=20", "gemm M=1 N=2"))
    assert "Dims" not in with_text(rows([said], *CASES))[0]
    assert [row["Dims"] for row in with_text(rows([said, short], *CASES))] == ["", "M=1, N=20"]


def test_a_case_that_failed_has_its_check_in_the_table() -> None:
    failed = compared(2, 3.0)
    case = Shape(label="a", dims={}, check="FAIL", status="failed")
    failed["verdict"] = failed["verdict"].saying(aggregate=None, shapes=[case])
    assert texts([compared(1), failed]) == {"all cases": [""], "a": ["✕ FAIL"]}


def test_of_many_rounds_the_table_has_the_kept_ones_and_the_last() -> None:
    rounds = [compared(number, 1.0, keeps=number % 5 == 0) for number in range(1, 41)]
    columns, _ = case_table(rounds)
    assert [column["number"] for column in columns] == [5, 10, 15, 20, 25, 30, *range(31, 41)]
    assert case_table(rounds[:20])[0] == rounds[:20]


def test_the_baseline_alone_has_neither_trend_nor_table(tmp_path: Path, browser: Page) -> None:
    file = tmp_path / "report.html"
    file.write_text(page.campaign_page(a_campaign(tmp_path, rounds=1, shapes=1)))
    browser.open(file)
    assert browser.value("document.querySelector('.tiles').textContent.trim()") == (
        "100.0 Forward TFLOPS of the baseline; no later round is decided yet"
    )
    assert browser.value("document.querySelector('#trend, #cases')") is None
    assert browser.complaints == []
