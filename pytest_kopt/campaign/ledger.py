"""ledger.jsonl: what happened, one event a line, appended and synced; everything else follows."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from pytest_kopt.campaign.notes import Notes
from pytest_kopt.decide.verdict import Aggregate, Decision, EndToEnd, KernelTime, Level
from pytest_kopt.documents import key_of, legal
from pytest_kopt.errors import BadInput
from pytest_kopt.honesty.transfer import UNCLASSIFIED
from pytest_kopt.models import Document, optional
from pytest_kopt.roofline import Efficiency


class Event(Document):
    """The keys of every line: format version and time (`YYYY-MM-DD HH:MM`)."""

    v: Literal[1] = Field(default=1, description="version of the format of a line")
    time: str = Field(description="time of the event, YYYY-MM-DD HH:MM")


class AttemptEvent(Event):
    """An event of one attempt at one round."""

    round: Annotated[int, Field(ge=1)]
    attempt: Annotated[int, Field(ge=1)]


class Opened(AttemptEvent):
    """An attempt began; `time` is its start."""

    event: Literal["opened"] = "opened"


class Measured(AttemptEvent):
    """Its evidence: SHA-256 by path below the campaign directory."""

    event: Literal["measured"] = "measured"
    evidence: dict[str, str]


class Trend(Document):
    """The figures of a row in performance_trend.md, in the schema's unit."""

    unit: str
    forward_average: float | None = None
    forward_peak: float | None = None
    backward_average: float | None = None
    backward_peak: float | None = None
    combined: float | None = None


class PairedChange(Document):
    """A round's paired gain over its incumbent in percent, geometric means over the cases."""

    step_pct: float
    forward_pct: float
    backward_pct: float | None = None


class Decided(AttemptEvent):
    """The verdict in short; `kernel` are the SHA-256 of the candidate's files.

    `baseline` is round 1's trend over the same cases, for a quick round.
    `stops` are the conditions that end the campaign once this is decided, each with why it holds.
    """

    event: Literal["decided"] = "decided"
    decision: Decision
    level: Level = "full"
    reason: str
    next_step: str = ""
    aggregate: Aggregate | None = None
    flags: list[str] = []
    trend: Trend | None = None
    baseline: Trend | None = None
    paired: PairedChange | None = None
    kernel_time: KernelTime | None = None
    efficiency: Efficiency | None = None
    stops: dict[str, str] = {}
    notes: Notes = Notes()
    kernel: dict[str, str]
    verdict_sha256: str


class Applying(AttemptEvent):
    """The decision is being carried out; without `applied` the next run finishes it."""

    event: Literal["applying"] = "applying"
    action: Literal["commit", "restore", "none"]


class Applied(AttemptEvent):
    """The decision was carried out."""

    event: Literal["applied"] = "applied"
    git_commit: str | None = None
    restored: list[str] = []


class ApplyWaived(AttemptEvent):
    """The user asked to leave git and kernel files alone (`--kopt-no-apply`)."""

    event: Literal["apply_waived"] = "apply_waived"


class Note(Event):
    """Notes that came after the round."""

    event: Literal["note"] = "note"
    round: Annotated[int, Field(ge=1)]
    notes: Notes


class Restoring(AttemptEvent):
    """The user has an attempt's version put into the tree.

    `replaced` are the SHA-256 of the files that lay there, which are kept. Without `restored` the
    next session finishes it.
    """

    event: Literal["restoring"] = "restoring"
    replaced: dict[str, str]


class Restored(AttemptEvent):
    """That version is in the tree; `files` are the paths that changed."""

    event: Literal["restored"] = "restored"
    files: list[str] = []


class Audited(Document):
    """An accepted round in the applicability audit; gains in percent, None without a bucket."""

    round: Annotated[int, Field(ge=1)] = Field(description="number of the accepted round")
    bucket: str | None = optional("kind of the gain, K1 to W3")
    benchmark_pct: float | None = optional("gain in the benchmark, in percent")
    credited_pct: float | None = optional("gain that counts for a training step, in percent")
    decision: str = Field(description="conclusion of the audit")


class FinalReport(Document):
    """The outcome of a campaign; gains in percent, S_real, W_real, R_real as in docs/what-next.md.

    `headline_pct` is what the accepted rounds' gains multiply to. Rounds that were `inconclusive`
    are among those rolled back; `ineffective` does not list them.
    """

    accepted: int = Field(description="number of accepted rounds")
    rolled_back: int = Field(description="number of rounds that kept nothing")
    inconclusive: int = Field(default=0, description="number of inconclusive rounds among them")
    effective: list[str] = Field(description="changes that gained, as text")
    ineffective: list[str] = Field(description="changes that did not gain, as text")
    audit: list[Audited] = Field(description="the accepted rounds")
    s_real_pct: float = Field(description="gain of the buckets K1 to K4, in percent")
    w_real_pct: float = Field(description="gain of weight caches (W1), bounded, in percent")
    r_real_pct: float = Field(
        description="gain of the buckets W2 and W3 that counts, in percent: 0"
    )
    headline_pct: float = Field(description="product of the accepted rounds' gains, in percent")
    next_directions: list[str] = Field(description="directions that remain, as text")

    @property
    def is_attributed(self) -> bool:
        """Whether a bucket was claimed or a cache found, so that benchmark and truth may differ."""
        return any(audited.bucket or audited.decision != UNCLASSIFIED for audited in self.audit)

    @property
    def real_pct(self) -> float:
        """The benchmark gain that fresh tensors have, that of weight caches bounded."""
        return self.s_real_pct + self.w_real_pct + self.r_real_pct

    @property
    def gap_pct(self) -> float:
        """The inflation gap: headline minus the gain with fresh tensors."""
        # Compounding the same gains in two ways differs in the last bits: no "-0.000" for that.
        return round(self.headline_pct - self.real_pct, 9) + 0.0


class Final(Event):
    """The best version (of round `best`) met the baseline; `evidence` as in `measured`."""

    event: Literal["final"] = Field(default="final", description="kind of the event")
    best: Annotated[int, Field(ge=1)] = Field(description="round of the best version")
    decision: Decision = Field(
        description="decision about the best version, compared with the baseline"
    )
    reason: str = Field(description="the reason for the decision, as text")
    aggregate: Aggregate | None = optional("paired change of all cases over the baseline")
    e2e: EndToEnd | None = optional("figure of a whole program, with an e2e_command")
    evidence: dict[str, str] = Field(
        description="SHA-256 of the files with the measurements, by name"
    )
    report: FinalReport | None = optional("outcome of the campaign")


class Retired(Event):
    """An event that only earlier releases wrote; the state does not depend on it."""

    event: Literal["integrating", "integrated"]


KeysOf = Literal["manifest_changed", "policy_changed"]


class KeysChanged(Event):
    """Keys of the manifest, or stop limits of the policy, have changed; their new values."""

    event: KeysOf
    values: dict[str, Any]


class Masking(Event):
    """Versions of the iteration memory were (un)masked; `seed` is a partial restart's draw."""

    event: Literal["masking"] = "masking"
    versions: list[Annotated[int, Field(ge=0)]]
    masked: bool
    seed: int | None = None


class NoIdleGpu(Event):
    """A session ended since no GPU was idle within `minutes`; the round it was for stays open.

    `round` is None for the final comparison; `in_the_way` has a text for each device.
    """

    event: Literal["no_idle_gpu"] = "no_idle_gpu"
    round: Annotated[int, Field(ge=1)] | None
    minutes: Annotated[float, Field(ge=0)]
    in_the_way: list[str]

    def __str__(self) -> str:
        purpose = f"round {self.round}" if self.round else "the final comparison"
        return (
            f"none within {self.minutes:g} minutes at {self.time}, for {purpose}; in the way: "
            f"{' | '.join(self.in_the_way)}"
        )


class Ended(Event):
    """The user stopped (T4) or abandoned the campaign."""

    event: Literal["ended"] = "ended"
    how: Literal["stopped", "abandoned"]


_OfAnAttempt = Opened | Measured | Decided | Applying | Applied | ApplyWaived | Restoring | Restored
_OfTheCampaign = Note | Final | KeysChanged | Masking | NoIdleGpu | Ended | Retired
AnyEvent = Annotated[_OfAnAttempt | _OfTheCampaign, Field(discriminator="event")]
_ADAPTER: TypeAdapter[AnyEvent] = TypeAdapter(AnyEvent)


def read(path: Path) -> list[AnyEvent]:
    """Return the events of a ledger, oldest first; none when the file does not exist.

    A half-written last line (a kill while appending) is dropped: its event never happened.
    Keys that another release wrote are left out.
    Raises BadInput naming the line for anything else that is not an event.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=str(path)) from None
    events: list[AnyEvent] = []
    for number, line in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            events.append(_ADAPTER.validate_json(line, extra="ignore"))
        except ValidationError as error:
            what = error.errors(include_url=False)[0]
            place = key_of(what, {} if what["type"] == "json_invalid" else json.loads(line))
            text = f"line {number} is no ledger event ({place}: {legal(what)})"
            raise BadInput(text, where=str(path), fix="restore it from a backup") from None
    return events


def append(path: Path, *events: Event) -> None:
    """Append events and sync them to disk; a torn last line of an earlier kill is cut off first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(_line(event) for event in events).encode()
    with open(path, "ab+") as stream:
        stream.seek(0)
        content = stream.read()
        keep = content.rfind(b"\n") + 1
        if keep != len(content):
            stream.truncate(keep)
            stream.seek(0, os.SEEK_END)
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())


def _line(event: Event) -> str:
    # exclude_defaults keeps long campaigns' ledgers short; the event's kind is a default too.
    document = event.model_dump(mode="json", exclude_defaults=True)
    kind = type(event).model_fields["event"].default
    return json.dumps({"v": 1, "event": kind, **document}, ensure_ascii=False) + "\n"
