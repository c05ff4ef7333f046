"""Finding the vendor's tool that knows the GPUs of this host."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from pytest_kopt.devices import amd_smi, nvml, rocm_smi
from pytest_kopt.devices.vendor import Vendor


def find_vendor() -> Vendor | None:
    """Return the first tool that finds a GPU on this host, None where there is none.

    NVML through `pynvml`; amdsmi, else rocm-smi.
    """
    for connect in (nvml.connect, amd_smi.connect, rocm_smi.connect):
        vendor: Vendor | None = connect()
        if vendor is not None and vendor.devices():
            return vendor
    return None


def why_none(dev: Path = Path("/dev")) -> str:
    """Return why no vendor was found: what is missing where `dev` has the nodes of NVIDIA GPUs."""
    if any(dev.glob("nvidia[0-9]*")) and find_spec("pynvml") is None:
        return "NVML's Python bindings (nvidia-ml-py), which list NVIDIA's GPUs, are not installed"
    return "no vendor's tool lists a GPU here"
