"""AMD GPUs through `rocm-smi --json`, where the bindings of AMD SMI are not installed."""

from __future__ import annotations

import json
import shutil
import subprocess

from pytest_kopt.devices.amd_smi import runtime_uuid
from pytest_kopt.devices.vendor import Device, Reading
from pytest_kopt.devices.visible import AMD

_TOOL = "rocm-smi"
_LIST = ("--showproductname", "--showuniqueid", "--showbus")
_STATE = (
    *("--showuse", "--showmeminfo", "vram", "--showclocks", "--showtemp", "--showpower"),
    "--showpids",
)
_MIB = 1 << 20
_SECONDS = 30.0


class Unanswered(Exception):
    """The tool failed or did not know what it was asked."""


def connect() -> RocmSmi | None:
    """Return the tool, None where it is absent or finds no driver."""
    if shutil.which(_TOOL) is None:
        return None
    try:
        _query(*_LIST)
    except Unanswered:
        return None
    return RocmSmi()


class RocmSmi:
    """Queries of `rocm-smi`, each a process of its own."""

    name = _TOOL
    stages = AMD

    def devices(self) -> list[Device]:
        return [
            Device(
                runtime_uuid(fields.get("Unique ID", ""), index),
                index,
                fields.get("Card Series", fields.get("Card series", "")),
                fields.get("GFX Version", ""),
                fields.get("PCI Bus", ""),
            )
            for index, fields in enumerate(_cards(_query(*_LIST)))
        ]

    def read(self, device: Device) -> Reading:
        answer = _query("--showbus", *_STATE)
        fields = next(card for card in _cards(answer) if card.get("PCI Bus") == device.pci)
        memory = _number(fields.get("VRAM Total Used Memory (B)"))
        return Reading(
            memory_mib=None if memory is None else memory / _MIB,
            utilisation_pct=_number(fields.get("GPU use (%)")),
            processes=_processes(answer.get("system", {})),
            sm_mhz=_number(fields.get("sclk clock speed:")),
            memory_mhz=_number(fields.get("mclk clock speed:")),
            temperature_c=_number(fields.get("Temperature (Sensor junction) (C)")),
            power_w=_power(fields),
        )


def _query(*options: str) -> dict[str, dict[str, str]]:
    """Return what the tool prints; Unanswered when it fails."""
    words = (_TOOL, *options, "--json")
    try:
        query = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False)
        document = None if query.returncode else json.loads(query.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        raise Unanswered(f"{_TOOL}: {error}") from None
    if not isinstance(document, dict):
        raise Unanswered(f"{_TOOL} ended with {query.returncode}: {query.stdout or query.stderr}")
    return document


def _cards(answer: dict[str, dict[str, str]]) -> list[dict[str, str]]:
    names = [name for name in answer if name.startswith("card")]
    return [answer[name] for name in sorted(names, key=lambda name: int(name[4:]))]


def _processes(system: dict[str, str]) -> tuple[int, ...]:
    """Return the pids of lines `PID<n>: name, number of GPUs, …`; any GPU may be meant."""
    pids = []
    for key, text in system.items():
        parts = text.split(", ")
        if key.startswith("PID") and len(parts) > 1 and parts[1] != "0":
            pids.append(int(key[3:]))
    return tuple(sorted(pids))


def _power(fields: dict[str, str]) -> float | None:
    names = (name for name in fields if name.endswith("Graphics Package Power (W)"))
    return _number(fields.get(next((name for name in names if not name.startswith("Max")), "")))


def _number(text: str | None) -> float | None:
    """Return the number at the start of a tool's answer, None for `[N/A]` and the like."""
    words = (text or "").strip().strip("()").split()
    try:
        return float(words[0].lower().removesuffix("mhz"))
    except (IndexError, ValueError):
        return None
