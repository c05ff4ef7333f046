"""The evidence of a case besides its row: its types, whose field names are the JSON's."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_kopt.devices.conditions import Conditions
from pytest_kopt.honesty.accuracy import Accuracy
from pytest_kopt.numerics.gates import Gate
from pytest_kopt.schema.columns import Better, Scalar

if TYPE_CHECKING:
    from pytest_kopt.measure.cold import InputPool
    from pytest_kopt.numerics.compare import Comparison


#: Parts of torch that some kernels import, for a second each, and most do not.
SLOW = ("torch._dynamo", "torch._inductor.compile_fx")


@dataclass(frozen=True, slots=True)
class Failure:
    """A result outside its gate, by the names that verdict.json has for it."""

    output: str
    reason: str
    gate: str
    snr_db: float | None = None
    max_abs_error: float | None = None
    worst_index: list[int] | None = None
    worst_reference: float | None = None
    worst_output: float | None = None

    @classmethod
    def of(cls, comparison: Comparison) -> Failure:
        f = comparison.figures
        measured = (f.snr_db, f.max_abs, list(f.worst_index), f.worst_ref, f.worst_out) if f else ()
        return cls(comparison.name, comparison.reason, comparison.gate, *measured)


@dataclass(frozen=True, slots=True)
class ColdCache:
    """The sets of inputs that timed calls went round, in bytes, and whether a cache was flushed.

    `l2_bytes` is the size of the largest cache that all units share.
    """

    sets: int
    set_bytes: int
    l2_bytes: int
    flushed: bool

    @classmethod
    def of(cls, pool: InputPool) -> ColdCache:
        return cls(len(pool.sets), pool.set_bytes, pool.cache_bytes, pool.flush() is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseEvidence:
    """All fields are None where they do not apply, or where an older version did not record them.

    `guessed`: the dims are, since the test failed before it declared them. `device` is a UUID.
    `quantities` says what each column of the schema holds, one of `QUANTITIES`, by its name.
    `seeds` are those of the check, by purpose. Pairs are forward and backward: `flops` and `nbytes`
    as declared, `io_bytes` by direction as counted; `counted_flops` is what torch counts in the
    reference. `by_torch` names the operators that make the result alone; `dtype` is what products
    are taken in; `groups` are group sizes by their distribution. `accuracy` is by name of the
    result. `timed` is from when to when the device was the case's, in seconds since the epoch,
    `seconds` the whole case. `tolerances` are the gates by name of the result, `derived_gates`
    those of them that kopt derived. `drawn` tells apart what the case draws. `weights`, `writes`,
    `consumes`, `domain`, `nan`, `deterministic`, `batch_invariant`, `group_multiple`, `limit_pct`,
    `limit_us`, `weight`, `cache` and `operating_point` are as declared. `bitwise_stable`: all of
    many calls on equal inputs gave equal bits. `home` is the file that defines the function,
    `judged_by` are those whose code drew the inputs and ran in the reference; paths of the project
    are relative to the root. `loaded` are the project's files that the process had imported,
    `opened` those that it had opened, each with the files that had it opened ("": not known).
    `used` are those that the function of an interpreted case can import or ran, `libraries` those
    of `SLOW` ones that it had.
    `autotuned` are the configurations that the process has chosen so far, by kernel and key.
    """

    schema: str | None = None
    quantities: dict[str, str] | None = None
    guessed: bool | None = None
    function: str | None = None
    dims: dict[str, Scalar] | None = None
    device: str | None = None
    gate: str | None = None
    failed: tuple[Failure, ...] | None = None
    interpreted: bool | None = None
    session_seed: int | None = None
    seeds: dict[str, int] | None = None
    flops: tuple[float, float] | None = None
    nbytes: tuple[float, float] | None = None
    io_bytes: dict[str, int] | None = None
    counted_flops: int | None = None
    by_torch: str | None = None
    dtype: str | None = None
    device_model: str | None = None
    weights: tuple[int, ...] | None = None
    writes: tuple[int, ...] | None = None
    consumes: tuple[int | str, ...] | None = None
    domain: tuple[str, ...] | None = None
    nan: str | None = None
    deterministic: bool | None = None
    batch_invariant: bool | None = None
    group_multiple: int | None = None
    limit_pct: float | None = None
    limit_us: float | None = None
    weight: float | None = None
    cache: str | None = None
    operating_point: str | None = None
    groups: dict[str, tuple[int, ...]] | None = None
    better: dict[str, Better] | None = None
    torch: str | None = None
    accuracy: dict[str, Accuracy] | None = None
    bitwise_stable: bool | None = None
    engine: str | None = None
    threads: int | None = None
    cold_cache: ColdCache | None = None
    queue_full: bool | None = None
    conditions: Conditions | None = None
    timed: tuple[float, float] | None = None
    forward_samples_ms: tuple[float, ...] | None = None
    calls_per_sample: int | None = None
    backward_samples_ms: tuple[float, ...] | None = None
    seconds: float | None = None
    tolerances: dict[str, Gate] | None = None
    derived_gates: dict[str, Gate] | None = None
    drawn: str | None = None
    home: str | None = None
    judged_by: tuple[str, ...] | None = None
    loaded: tuple[str, ...] | None = None
    opened: dict[str, tuple[str, ...]] | None = None
    used: tuple[str, ...] | None = None
    libraries: tuple[str, ...] | None = None
    autotuned: dict[str, dict[str, str]] | None = None
    note: str | None = None

    def samples_ms(self, way: str) -> tuple[float, ...]:
        samples = self.forward_samples_ms if way == "forward" else self.backward_samples_ms
        return samples or ()

    def call_ms(self, way: str) -> float | None:
        """Return the median time of a call in a direction, or of both (step); None without any."""
        ways = ("forward", "backward") if way == "step" else (way,)
        return math.fsum(statistics.median(s) for w in ways if (s := self.samples_ms(w))) or None
