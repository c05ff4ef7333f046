"""Which kind of device this process uses, decided without importing torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_NODES = ("nvidia[0-9]*", "kfd", "dxg")


def choose(
    option: str,
    environ: Mapping[str, str] = os.environ,
    dev: Path = Path("/dev"),
    *,
    target: str | None = None,
) -> str:
    """Return "cpu" or "cuda" for the option auto, cpu or cuda.

    auto is cpu for a campaign whose `target` is the CPU, else cuda where a GPU's device node exists
    and the caller's mask does not hide every GPU.
    torch's HIP build calls an AMD GPU "cuda" as well.
    """
    if option != "auto":
        return option
    if target == "cpu":
        return "cpu"
    masked = any(environ.get(mask, "0").strip() in ("", "-1") for mask in MASKS)
    present = any(True for pattern in _NODES for _ in dev.glob(pattern))
    return "cuda" if present and not masked else "cpu"


def interpreter_environment(device: str, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return what has to be set before Triton is imported: its interpreter where there is no GPU.

    A value that the user has set already is left as it is.
    """
    if device == "cpu" and "TRITON_INTERPRET" not in environ:
        return {"TRITON_INTERPRET": "1"}
    return {}
