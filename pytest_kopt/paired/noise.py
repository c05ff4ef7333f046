"""The known noise of a comparison: earlier sessions, `kopt calibrate` among them, or a default."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from pytest_kopt.cases.order import CANDIDATE
from pytest_kopt.cases.result import CaseResult
from pytest_kopt.decide.known_noise import DEVICE_TIMED, HOST_TIMED, Noise
from pytest_kopt.devices.states import BOOST, SUSTAINED
from pytest_kopt.documents import validate
from pytest_kopt.errors import BadInput
from pytest_kopt.knowledge import facts
from pytest_kopt.models import Document
from pytest_kopt.paired.samples import CaseQuads, Replicates
from pytest_kopt.schema.metrics import Way
from pytest_kopt.schema.table import write_atomically

if TYPE_CHECKING:
    from pytest_kopt.campaign.campaign import Campaign

#: Of a campaign's sessions the latest count: the machine of months ago is another one.
_SESSIONS = 6
#: The device of a session that counts on each of its model.
ANY_DEVICE = ""
LogRatio = Annotated[float, Field(allow_inf_nan=False)]


class CaseScatter(Document):
    """One case in one session: log-ratios of the comparison and of its A/A control."""

    engine: str
    device: str
    operating_point: str = BOOST
    main: list[LogRatio]
    placebo: list[LogRatio]

    def fits(self, case: CaseQuads) -> bool:
        """Say whether it was timed by the same engine, at the same point, on the same device."""
        is_here = self.device in (ANY_DEVICE, case.device)
        return is_here and (self.engine, self.operating_point) == (case.engine, _point(case))


class Scatter(BaseModel):
    """The scatter of a session's replicas, by direction and node id."""

    model_config = ConfigDict(extra="ignore")

    log_ratios_by_way: dict[Way, dict[str, CaseScatter]] = {}

    @classmethod
    def of(cls, replicas: Replicates) -> Scatter:
        """Return it of replicas; a case without a backward has the same in every direction."""
        timed = {nodeid: quads for nodeid, quads in replicas[0].items() if not quads.same}
        ways: dict[Way, dict[str, CaseScatter]] = {}
        for nodeid, first in timed.items():
            directions: tuple[Way, ...] = ("forward", "backward", "step")
            for way in directions if first.has_backward else directions[2:]:
                ways.setdefault(way, {})[nodeid] = CaseScatter(
                    engine=first.engine,
                    device=first.device,
                    operating_point=_point(first),
                    main=[replica[nodeid].ratio(way) for replica in replicas],
                    placebo=[replica[nodeid].ratio(way, "placebo") for replica in replicas],
                )
        return cls(log_ratios_by_way=ways)


@dataclass(frozen=True, slots=True)
class NoiseHistory:
    """Earlier sessions: a campaign's, and the one of `kopt calibrate` on this device's model."""

    sessions: tuple[Scatter, ...] = ()

    @classmethod
    def here(
        cls, workspace: Path, results: Sequence[CaseResult], campaign: Campaign | None = None
    ) -> NoiseHistory:
        """Return what is known of the noise of these cases; BadInput for a damaged file."""
        sessions = _of_campaign(campaign) if campaign else []
        model = next((m for r in results if (m := r.evidence.device_model)), None)
        if model and (path := path_of(workspace, model)).is_file():
            sessions.append(_read(path))
        return cls(tuple(sessions))

    def noise(self, way: Way, now: Mapping[str, CaseQuads]) -> Noise:
        """Return the noise of one direction; `now` is the comparison's first replica."""
        engines = {quads.engine for quads in now.values() if not quads.same}
        default = HOST_TIMED if any("wall" in engine for engine in engines) else DEVICE_TIMED

        arms: list[dict[str, list[float]]] = []
        for session in self.sessions:
            ways = session.log_ratios_by_way
            by_case = ways.get("step", {}) | ways.get(way, {})
            fitting = {
                nodeid: earlier
                for nodeid, earlier in by_case.items()
                if (case := now.get(nodeid)) and earlier.fits(case)
            }
            arms.append({nodeid: earlier.main for nodeid, earlier in fitting.items()})
            arms.append({nodeid: earlier.placebo for nodeid, earlier in fitting.items()})
        return Noise(tuple(arms), default)


def _point(case: CaseQuads) -> str:
    """Return the operating point that a case's ratios are at."""
    return SUSTAINED if case.at(CANDIDATE) is not case.at(CANDIDATE, BOOST) else BOOST


def path_of(workspace: Path, device: str) -> Path:
    """Return the file that holds what `kopt calibrate` recorded on a device model."""
    name = facts.path_of(workspace, device).with_suffix(".json").name
    return workspace / "noise" / name


def keep(workspace: Path, document: Mapping[str, Any]) -> Path:
    path = path_of(workspace, document["device"])
    write_atomically(path, json.dumps(document, indent=1) + "\n")
    return path


def _read(path: Path) -> Scatter:
    """Return a calibration as a session of any device: its file is that of the model."""
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadInput(f"is not JSON: {error}", where=str(path)) from None
    if not isinstance(document, dict):
        raise BadInput("is no calibration", where=str(path), fix="write one: kopt calibrate")
    ways = validate(Scatter, document, where=str(path)).log_ratios_by_way
    anywhere = {"device": ANY_DEVICE}
    return Scatter(
        log_ratios_by_way={
            way: {nodeid: series.model_copy(update=anywhere) for nodeid, series in cases.items()}
            for way, cases in ways.items()
        }
    )


def _of_campaign(campaign: Campaign) -> list[Scatter]:
    """Return what the latest sessions kept; one whose evidence is gone has nothing to say."""
    attempts = (
        attempt
        for of_round in reversed(campaign.state.rounds.values())
        for attempt in reversed(of_round.attempts.values())
        if attempt.decided is not None
    )
    scatters = []
    for attempt in islice(attempts, _SESSIONS):
        with contextlib.suppress(BadInput):
            session = attempt.session()
            scatters.append(validate(Scatter, session.get("comparison", {}), where=""))
    return scatters
