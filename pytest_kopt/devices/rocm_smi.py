"""AMD GPUs through `rocm-smi --json`, where the bindings of AMD SMI are not installed."""

from __future__ import annotations

import json

from pytest_kopt.devices.amd_smi import runtime_uuid
from pytest_kopt.devices.masks import AMD
from pytest_kopt.devices.tool import Unanswered, ask, is_there, number
from pytest_kopt.devices.vendor import Device, Reading

_TOOL = "rocm-smi"
_LIST = ("--showproductname", "--showuniqueid", "--showbus")
_STATE = (
    *("--showuse", "--showmeminfo", "vram", "--showclocks", "--showtemp", "--showpower"),
    "--showpids",
)
_MIB = 1 << 20


def connect() -> RocmSmi | None:
    """Return the tool, None where it is absent or finds no driver."""
    if not is_there(_TOOL):
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
        memory = number(fields.get("VRAM Total Used Memory (B)"))
        return Reading(
            memory_mib=None if memory is None else memory / _MIB,
            utilisation_pct=number(fields.get("GPU use (%)")),
            processes=_processes(answer.get("system", {})),
            sm_mhz=number(fields.get("sclk clock speed:")),
            memory_mhz=number(fields.get("mclk clock speed:")),
            temperature_c=number(fields.get("Temperature (Sensor junction) (C)")),
            power_w=_power(fields),
        )


def _query(*options: str) -> dict[str, dict[str, str]]:
    try:
        found = json.loads(ask(_TOOL, *options, "--json"))
    except ValueError as error:
        raise Unanswered(f"{_TOOL} printed no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Unanswered(f"{_TOOL} printed {type(found).__name__}")
    return found


def _cards(answer: dict[str, dict[str, str]]) -> list[dict[str, str]]:
    names = [name for name in answer if name.startswith("card")]
    return [answer[name] for name in sorted(names, key=lambda name: int(name[4:]))]


def _processes(system: dict[str, str]) -> tuple[int, ...]:
    """Return the pids that use a GPU; the tool does not say which, so any of them may be meant.

    A line is `PID<n>: name, number of GPUs, VRAM, SDMA, occupancy`.
    """
    found = []
    for key, text in system.items():
        parts = text.split(", ")
        if key.startswith("PID") and len(parts) > 1 and parts[1] != "0":
            found.append(int(key[3:]))
    return tuple(sorted(found))


def _power(fields: dict[str, str]) -> float | None:
    names = [name for name in fields if name.endswith("Graphics Package Power (W)")]
    names = [name for name in names if not name.startswith("Max")]
    return number(fields[names[0]]) if names else None
