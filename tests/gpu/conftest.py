"""Skips every test here where there is no GPU."""

from __future__ import annotations

import pytest
import torch

from pytest_kopt.devices.pinning import discover, in_use
from pytest_kopt.devices.processes import announce


@pytest.fixture(autouse=True, scope="session")
def _no_stranger() -> None:
    """Let the sessions that are run here know that this process leaves the GPU to them."""
    if torch.cuda.is_available():
        announce(in_use(discover("cuda")).uuid)


@pytest.fixture(autouse=True)
def _needs_a_gpu(request: pytest.FixtureRequest) -> None:
    marker = request.node.get_closest_marker("gpu")
    wanted = marker.kwargs.get("count", 1) if marker else 1
    found = torch.cuda.device_count()
    if found < wanted:
        pytest.skip(f"needs {wanted} GPU(s), found {found}")
