"""The states in which a case is measured: the clock of its GPU, and where its inputs lie."""

from __future__ import annotations

#: Pauses keep the clock at its top; or each version has the clock that it gets where it alone keeps
#: the device busy.
BOOST, SUSTAINED = OPERATING_POINTS = ("boost", "sustained")
#: Timed calls find their inputs in memory, or in the cache.
COLD, WARM = CACHES = ("cold", "warm")
