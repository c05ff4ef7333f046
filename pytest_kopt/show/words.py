"""Texts for people: how verdicts are written, and the columns of tables."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_kopt.devices.states import SUSTAINED
from pytest_kopt.figures import at_level, before_and_now, changed, ends, figure, interval, within

if TYPE_CHECKING:
    from pytest_kopt.campaign.ledger import Final
    from pytest_kopt.decide.case_verdict import FirstCall, Shape
    from pytest_kopt.decide.operating_points import OperatingPoint
    from pytest_kopt.decide.verdict import Aggregate, ConfigClass, KernelChange, Verdict

#: A figure of a kernel: its name, before, after.
_Figure = tuple[str, str, str]
#: Characters from which on a failure's text is not told for every case.
_LONG = 160
#: Shorter first calls, in ms, and a smaller ratio of the versions' differ by chance.
_NOTABLE_MS, _NOTABLE_RATIO = 10.0, 2.0
_OTHER = "other instructions or arguments"
#: What moves a cursor, colours, rings, ends a line elsewhere or turns the direction of writing.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)
#: What is aligned as a figure; a sentence that begins with a digit is not one.
_FIGURE = re.compile(r"[+\-\[—]?[^A-Za-z]*( (MiB|TFLOPS|GB/s))?")


def _text(value: object) -> str:
    return "" if value is None else str(value)


class TextColumn(NamedTuple):
    """A column of a table: its heading, the field of a record that it shows, and how.

    The field may be one of a field: `verdict.time`. Without one it shows something of the record.
    """

    heading: str
    field: str = ""
    written: Callable[[Any], str] = _text

    def of(self, record: Any) -> str:
        """Return its cell in the row of a record."""
        for name in filter(None, self.field.split(".")):
            record = None if record is None else getattr(record, name)
        return self.written(record)


CHANGE = TextColumn("Change", "change_pct", changed)
INTERVAL = TextColumn("Interval", written=lambda record: interval(*ends(record)))
INCUMBENT = TextColumn("Current best", "incumbent", figure)
CANDIDATE = TextColumn("Candidate", "candidate", figure)
STATUS = TextColumn("Status", "status")
CASE_STATUS = TextColumn("Status", written=lambda case: case_status(case))
CHECK = TextColumn("Check", "check")
LABEL = TextColumn("Case", "label")
GEOMEANS = (TextColumn("Geomean", "metric"), INCUMBENT, CANDIDATE, CHANGE, INTERVAL)
SUMS = (TextColumn("All cases", "metric"), *GEOMEANS[1:])
CASES = (
    LABEL,
    TextColumn("Dims", written=lambda case: _dims(case)),
    *(CHECK, CHANGE, INTERVAL, CASE_STATUS),
)
CLASSES = (TextColumn("Class", "name"), TextColumn("Cases", "cases"), *GEOMEANS[1:], STATUS)
CANDIDATES = (
    TextColumn("Place", "place"),
    TextColumn("Candidate", "name"),
    TextColumn("Decision", "decision"),
    *(CHANGE, INTERVAL),
    TextColumn("Reason", "reason"),
)
AUDIT = (
    TextColumn("Round", "round", "round-{}".format),
    TextColumn("Bucket", "bucket", lambda bucket: bucket or "-"),
    TextColumn("Benchmark gain", "benchmark_pct", changed),
    TextColumn("With fresh tensors", "credited_pct", changed),
    TextColumn("Decision", "decision"),
)
_KERNELS = ("Kernel", "Change (code size and memory in bytes, others: instructions)", "First in")
REGRESSIONS = (
    TextColumn("Round", written=lambda row: f"round-{row.round} attempt {row.attempt}"),
    TextColumn("Time", "time"),
    TextColumn("Hypothesis", "hypothesis", lambda text: text or "not stated"),
    TextColumn("Changed files", "files", ", ".join),
    TextColumn(
        "Benchmark best -> candidate",
        written=lambda row: f"{row.metric} {before_and_now(row.incumbent, row.candidate)}",
    ),
    TextColumn(
        "GPU time best -> candidate (us)",
        written=lambda row: before_and_now(row.incumbent_kernel_us, row.candidate_kernel_us),
    ),
    TextColumn("Delta", "change_pct", changed),
    TextColumn("Notes", "points"),
)


def outcome(verdict: Verdict) -> str:
    return verdict.outcome or str(verdict.decision)


def gate_outcome(verdict: Verdict) -> str:
    """Return what a gate says, which keeps nothing and rolls nothing back."""
    decision = str(verdict.decision)
    if verdict.removed:
        return "refused"
    low = verdict.aggregate.low_pct if verdict.aggregate else None
    word = "faster" if (low or 0) > 0 else "not slower"
    return {
        "ACCEPTED": word,
        "ACCEPTED_WITH_NOTE": f"{word}, with a note",
        "ROLLED_BACK": "slower",
        "SPLIT": "slower",
        "INCONCLUSIVE": "may be slower" if verdict.compare == "paired" else "not faster",
        "REPAIR": "wrong",
        "REJECTED_OVERFIT": "refused",
        "INCOMPLETE": "not judged",
    }.get(decision, decision)


def case_status(case: Shape) -> str:
    """Return a case's status; one that is `unchanged` for the verdict by what its interval says."""
    if case.same:
        return "same code"
    if case.status != "unchanged":
        return case.status
    if case.check == "PASS" and case.change_pct is None:
        return "not compared"
    # The decision may still be "may be slower": "unchanged" would contradict it.
    return "slower" if (case.high_pct or 0.0) < 0 else "no change shown"


def remarks(verdict: Verdict) -> list[str]:
    """Return what is said of all cases of a verdict, a line each."""
    again = ", ".join(map(changed, verdict.remeasured_pct))
    texts = (
        *(confidence(verdict), conditions(verdict), memory(verdict), first_calls(verdict)),
        *(end_to_end(verdict), again and f"re-measured: {again}", verdict.same_code),
        *second_points(verdict),
    )
    return [text for text in texts if text]


def compared(figures: Aggregate | ConfigClass) -> str:
    """Return both values, where they are known, and the change with its interval."""
    change = "" if figures.change_pct is None else within(figures)
    if figures.candidate is None:
        return change
    if figures.incumbent is None:
        return f"{figure(figures.candidate)}  {change}".rstrip()
    speed = "speed " if getattr(figures, "better", "higher") == "lower" else ""
    return f"{before_and_now(figures.incumbent, figures.candidate)}  {speed}{change}"


def end_to_end(verdict: Verdict | Final) -> str:
    """Return the kernels' gain with that of a whole program, "" where none was run."""
    run, total = verdict.e2e, verdict.aggregate
    if run is None or total is None:
        return ""
    return (
        f"{changed(total.change_pct)} in the kernels, {within(run)} end to end: "
        f"`{run.command}` took {before_and_now(run.incumbent, run.candidate)} "
        f"in {run.runs} runs each"
    )


def confidence(verdict: Verdict) -> str:
    """Return the confidence levels of a verdict's intervals, "" where it has none."""
    level = verdict.aggregate.confidence if verdict.aggregate else None
    return "" if level is None else f"confidence: {at_level(level)} overall, 95 % per case"


def conditions(verdict: Verdict) -> str:
    """Return what the intervals of a verdict are conditional on, "" where nothing is said of it."""
    states = Counter(measured_at(shape) for shape in verdict.shapes if shape.operating_point)
    if not states:
        return ""
    (most, count), *others = states.most_common()
    rest = f" ({count} of {states.total()} cases)" if others else ""
    return f"measured at {most}{rest}"


def second_points(verdict: Verdict) -> list[str]:
    """Return the cases whose two operating points differ by more than the intervals, a line each.

    The change in time at both, then at the sustained one in clock cycles and in energy.
    """
    return [
        f"{shape.label}: {'; '.join(map(_point, shape.operating_points))}"
        for shape in verdict.shapes
        if shape.points_differ
    ]


def _point(point: OperatingPoint) -> str:
    watts = _whole(point.incumbent.watts, point.candidate.watts, "W")
    state = ", ".join(filter(None, [clock_of(point), watts]))
    text = _at(point) + (f" ({state})" if state else "")
    if point.name != SUSTAINED:
        return text
    if point.cycles_pct is not None:
        text += f", {changed(point.cycles_pct)} in cycles"
    old, new = point.incumbent.joules, point.candidate.joules
    if old is not None and new is not None:
        text += f", {before_and_now(old, new)} J a call"
    return text


def memory(verdict: Verdict) -> str:
    """Return what a call holds at most, in the case where the versions differ most; "" if none."""
    peaks = [shape.memory for shape in verdict.shapes if shape.memory]
    apart = [peak for peak in peaks if peak.differs]
    if not apart:
        return ""
    most = max(apart, key=lambda peak: peak.ratio)
    return f"memory of a call at its peak, in the case that differs most: {most.in_mib}"


def first_calls(verdict: Verdict) -> str:
    """Return the first calls of the case where the versions' differ most; "" where none do."""
    calls = [shape.first_call_ms for shape in verdict.shapes if shape.first_call_ms]
    by_ratio = {
        max(ends) / max(min(ends), 1e-9): call
        for call in calls
        if max(ends := (call.incumbent, call.candidate)) > _NOTABLE_MS
    }
    if max(by_ratio, default=0.0) < _NOTABLE_RATIO:
        return ""
    return f"first call, in the case that differs most: {first_call(by_ratio[max(by_ratio)])} ms"


def kernel_lines(verdict: Verdict) -> list[str]:
    """Return what changed in the machine code, a line for each kernel."""
    return ["{}: {} (first in {})".format(*row.values()) for row in kernel_rows(verdict)]


def kernel_rows(verdict: Verdict) -> list[dict[str, str]]:
    """Return each kernel that changed: its name, what changed in words, and its first case."""
    return [
        dict(zip(_KERNELS, (kernel.kernel, _in_words(kernel, figures), kernel.case), strict=True))
        for kernel, figures in _kernel_figures(verdict)
    ]


def _in_words(kernel: KernelChange, figures: Sequence[_Figure]) -> str:
    """Return what changed in a kernel, of an added one its figures."""
    if not kernel.before:
        return ", ".join(["added", *(f"{name} {after}" for name, _, after in figures)])
    changes = [f"{name} {before} -> {after}" for name, before, after in figures]
    return ", ".join([*([] if kernel.after else ["gone"]), *(changes or [_OTHER])])


def _kernel_figures(verdict: Verdict) -> Iterator[tuple[KernelChange, list[_Figure]]]:
    """Yield each kernel with the figures that differ, once where only the number of blocks does."""
    earlier = set()
    for kernel in verdict.kernels:
        names = {**kernel.before, **kernel.after} if kernel.after else ["launches"]
        old, new = kernel.before, kernel.after
        figures = [(name, f"{old.get(name, 0):g}", f"{new.get(name, 0):g}") for name in names]
        rows = [row for row in figures if row[1] != row[2]]
        key = (kernel.kernel, *(row for row in rows if row[0] != "blocks"))
        if key not in earlier:
            earlier.add(key)
            yield kernel, rows


def clipped(label: str, room: int) -> str:
    """Return a label that fits, its middle left out: dims at both ends tell cases apart."""
    if len(label) <= room:
        return label
    head = (room - 1) // 2
    return f"{label[:head]}…{label[len(label) - (room - 1 - head) :]}"


def visible(text: str) -> str:
    r"""Return text with control and direction characters as `\u001b`; tab and newline stay."""
    return _UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def all_visible(data: Any) -> Any:
    """Return a document (mappings, sequences, texts) with every text in it visible."""
    if isinstance(data, str):
        return visible(data)
    if isinstance(data, dict):
        return {visible(key): all_visible(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [all_visible(part) for part in data]
    return data


def printed(text: str) -> list[str]:
    """Return the lines in which text is printed: visible, and no command to a CI runner."""
    lines = [visible(line) for line in text.splitlines()] or [""]
    # A runner looks for `::command::` at the start of a line; a word joiner is not seen.
    return [f"\u2060{line}" if line.lstrip().startswith("::") else line for line in lines]


def markdown_table(table: Sequence[Mapping[str, str]], *, begins: bool = True) -> str:
    """Return a Markdown table of rows, each cells by heading; bars in cells are escaped.

    Rows of a table that began earlier have no head.
    """
    cells = ([*table[0]], *(row.values() for row in table))
    lines = [f"| {' | '.join(map(one_line, line))} |" for line in cells]
    lines.insert(1, f"|{'---|' * len(table[0])}")
    return "\n".join(lines if begins else lines[2:])


def text_table(table: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the same as lines for a terminal: headings, a rule as wide as the table, rows."""
    widths = {name: max(len(name), *(len(row[name]) for row in table)) for name in table[0]}
    head = ({name: name for name in widths}, {name: "-" * width for name, width in widths.items()})
    return [
        "  ".join(row[name].ljust(width) for name, width in widths.items()).rstrip()
        for row in (*head, *table)
    ]


def html_table(rows: Sequence[Mapping[str, str]]) -> str:
    """Return the same as HTML: text is escaped, and columns of figures are of the class `n`."""
    names = [*rows[0]]
    figures = {name for name in names[1:] if all(_FIGURE.fullmatch(row[name]) for row in rows)}
    cells = {name: '<td class="n">' if name in figures else "<td>" for name in names}
    lines = ["".join(f"{cells[name]}{escape(row[name])}</td>" for name in names) for row in rows]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "\n".join(f"<tr>{line}</tr>" for line in lines)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def one_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def told_once(text: str, firsts: dict[str, str]) -> str:
    """Return a failure's text, or whose it equals; `told`: by the text below, the first line."""
    head, _, rest = text.partition("\n")
    first = firsts.setdefault(rest, head)
    return text if first == head or len(rest) < _LONG else f"{head}\nthe same as {first!r}"


def rows(records: Iterable[Any], *columns: TextColumn) -> list[dict[str, str]]:
    """Return a row for each record, its cells by heading."""
    return [{column.heading: column.of(record) for column in columns} for record in records]


def with_text(table: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Return rows without the columns that are empty in all of them."""
    filled = {heading for row in table for heading, cell in row.items() if cell}
    return [{heading: row[heading] for heading in row if heading in filled} for row in table]


def _dims(case: Shape) -> str:
    """Return a case's dims, "" where its label has them all."""
    dims = [f"{name}={value}" for name, value in case.dims.items()]
    return "" if {*dims} <= {*case.label.split()} else ", ".join(dims)


def first_call(call: FirstCall | None) -> str:
    """Return the first calls' times, before -> now in ms."""
    return f"{call.incumbent:.0f} -> {call.candidate:.0f}" if call else ""


def clock_of(point: OperatingPoint) -> str:
    """Return the versions' clock at an operating point, before -> now in MHz, "" for none."""
    return _whole(point.incumbent.mhz, point.candidate.mhz, "MHz")


def _whole(before: float | None, now: float | None, unit: str) -> str:
    """Return two whole figures, `before -> now`, or one where they read alike; "" for none."""
    texts = dict.fromkeys(f"{value:.0f}" for value in (before, now) if value is not None)
    return f"{' -> '.join(texts)} {unit}" if texts else ""


def measured_at(case: Shape) -> str:
    """Return the state that a case's change is conditional on: `boost, 1980 MHz, cold cache`.

    A clock that the device's owner has set is `locked`.
    """
    first = next(iter(case.operating_points), None)
    clock = clock_of(first) if first else ""
    parts = [case.operating_point or "", f"{clock} locked" if case.clock_is_locked else clock]
    if case.is_steady:
        parts.append("the same under load")
    return ", ".join(filter(None, [*parts, case.cache and f"{case.cache} cache"]))


def second_point(case: Shape) -> str:
    """Return what a case changed by at its other operating point, "" where that is not measured."""
    return next(map(_at, case.operating_points[1:]), "")


def _at(point: OperatingPoint) -> str:
    return f"{within(point)} at {point.name}"


#: Of cases that were compared on a GPU.
POINTS = (TextColumn("Measured at", "", measured_at), TextColumn("Other point", "", second_point))
#: Of cases in which both versions were measured: before -> now.
COSTS = (
    TextColumn("Memory", "memory.in_mib"),
    TextColumn("First call (ms)", "first_call_ms", first_call),
)
