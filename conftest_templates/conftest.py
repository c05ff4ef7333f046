"""Options, GPU pinning and reset backends for a project's tests: put it beside pyproject.toml.

pytest -n 8                        single-GPU tests, one worker a GPU
pytest -n 8 --deterministic-only   the bitwise determinism suite
pytest --dist-only                 the multi-GPU tests
"""

import os
from pathlib import Path

import pytest

#: Your project's backend switches as (get, set), for example `(ops.get_gemm_backend,
#: ops.set_gemm_backend)`: each is put back after every test.
BACKENDS = ()
MASKS = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def pytest_addoption(parser):
    # The same destinations as pytest-kopt's own options, so both spellings mean the same.
    for name in ("deterministic-only", "dist-only"):
        parser.addoption(
            f"--{name}",
            action="store_true",
            dest=f"kopt_{name.replace('-', '_')}",
            help=f"short for --kopt-{name}",
        )


@pytest.hookimpl(optionalhook=True, trylast=True)
def pytest_xdist_setupnodes(specs):
    """Give every worker a GPU of its own, unless pytest-kopt has done so.

    A worker's environment is part of its spec: it is there before anything is imported, and the
    replacement of a crashed worker inherits it.
    """
    mask, gpus = visible_gpus(os.environ)
    for place, spec in enumerate(specs):
        if gpus and not any(name in spec.env for name in MASKS):
            spec.env[mask] = gpus[place % len(gpus)]


@pytest.fixture(autouse=True)
def backends_reset():
    """Put the backends back after a test.

    pytest-kopt does so for torch's own switches (TF32, cuDNN, attention, ...).
    """
    before = [(select, read()) for read, select in BACKENDS]
    yield
    for select, backend in before:
        select(backend)


def visible_gpus(environ, dev=Path("/dev"), sys=Path("/sys")):
    """Return the variable that hides GPUs here, and the GPUs that it leaves visible."""
    nvidia = sorted(path.name.removeprefix("nvidia") for path in dev.glob("nvidia[0-9]*"))
    nodes = sys.glob("class/kfd/kfd/topology/nodes/*/gpu_id")
    amd = [str(i) for i, _ in enumerate(p for p in nodes if p.read_text().strip() != "0")]
    for name in MASKS:
        if name in environ:
            return name, [word.strip() for word in environ[name].split(",") if word.strip()]
    return ("CUDA_VISIBLE_DEVICES", nvidia) if nvidia else ("HIP_VISIBLE_DEVICES", amd)
