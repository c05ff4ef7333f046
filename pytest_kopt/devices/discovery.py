"""Finding the vendor's tool that knows the GPUs of this host."""

from __future__ import annotations

from pytest_kopt.devices import amd_smi, nvidia_smi, nvml, rocm_smi
from pytest_kopt.devices.vendor import Vendor


def find_vendor() -> Vendor | None:
    """Return the first tool that finds a GPU on this host, None where there is none.

    NVML through `pynvml`, else nvidia-smi; amdsmi, else rocm-smi.
    """
    for connect in (nvml.connect, nvidia_smi.connect, amd_smi.connect, rocm_smi.connect):
        vendor: Vendor | None = connect()
        if vendor is not None and vendor.devices():
            return vendor
    return None
