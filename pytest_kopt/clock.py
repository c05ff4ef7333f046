"""Timestamps as every file of a campaign writes them."""

from __future__ import annotations

from datetime import datetime


def now() -> str:
    """Return local time to the minute, `YYYY-MM-DD HH:MM`."""
    return datetime.now().strftime("%Y-%m-%d %H:%M")
