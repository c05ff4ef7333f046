"""Which machine a session runs on, and whether another one measured what it goes on from."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

from pytest_kopt.devices.model import cpu_model


def this_machine() -> dict[str, str]:
    """Return the machine's name and its CPU's, as sessions record them."""
    return {"host": platform.node(), "cpu": cpu_model()}


def elsewhere(session: Mapping[str, Any]) -> str:
    """Return on which other machine a recorded session ran; "" for this one or an unknown one."""
    here = this_machine()
    if all(session.get(key, text) == text for key, text in here.items()):
        return ""
    return f"{_shown(session)}, this is {_shown(here)}"


def _shown(machine: Mapping[str, Any]) -> str:
    return f"{machine.get('host', 'an unknown host')} ({machine.get('cpu', 'CPU not recorded')})"
