"""What every test of the suite may use."""

from __future__ import annotations

import os

# Before torch is imported: its threads would only wait for those of the other test processes.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytest_plugins = ["pytester"]
