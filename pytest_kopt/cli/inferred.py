"""The facts that `kopt init` finds out in a tree with one kernel and its tests."""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from pytest_kopt.campaign.manifest import ARCHITECTURES
from pytest_kopt.clock import now
from pytest_kopt.devices.pinning import discover
from pytest_kopt.devices.vendor import choose
from pytest_kopt.errors import BadInput
from pytest_kopt.imports import is_imported, names_in
from pytest_kopt.options.project import Project
from pytest_kopt.standalone.cases import beyond_torch
from pytest_kopt.standalone.child_session import tests_below
from pytest_kopt.versions.overlay import project_files


def fill_in(arguments: argparse.Namespace, project: Project) -> list[str]:
    """Set the arguments that were not given and can be known; return what was found out.

    The kernel is the one file of the project that tests of cases import; it tells the operator by
    its name and the backend by what it imports. The GPU is this machine's. BadInput where there is
    no name for the campaign.
    """
    found = {}
    if arguments.kernel_source is None and (kernel := _only_kernel(project.root)):
        arguments.kernel_source = [str(project.root / kernel)]
        found["--kernel"] = kernel
    kernels = [Path(path) for path in arguments.kernel_source or ()]
    if arguments.target_op is None and len(kernels) == 1:
        arguments.target_op = found["--op"] = kernels[0].stem
    if arguments.target_backend is None and (backend := _backend(kernels)):
        arguments.target_backend = found["--backend"] = backend
    if arguments.target_gpu is None and not arguments.elsewhere:
        gpu = _gpu()
        # Triton's interpreter is no device to optimise for.
        if gpu != "cpu" or arguments.target_backend == "TORCH":
            arguments.target_gpu = found["--gpu"] = gpu
    if arguments.name is None:
        words = (arguments.target_op, arguments.target_backend, arguments.target_gpu)
        if not all(words):
            fix = "kopt init NAME, or give --op, --backend and --gpu"
            raise BadInput("the campaign has no name", where="kopt init", fix=fix)
        arguments.name = "_".join((*words, now()[:10].replace("-", ""))).lower()
        found["NAME"] = arguments.name
    return [f"{option} {text}" for option, text in found.items()]


def _only_kernel(root: Path) -> str | None:
    """Return the one file below a root that tests of cases import; None for none or several."""
    tests = [file for file in tests_below([root]) if b"kopt" in file.read_bytes()]
    tests = [file for file in tests if file.name.startswith("test_")]
    names = {name for test in tests for name in names_in(test.read_bytes())}
    files = (path for path in project_files(root) if is_imported(path, names))
    kernels = [path.as_posix() for path in files if path.name not in ("__init__.py", "conftest.py")]
    return kernels[0] if len(kernels) == 1 else None


def _backend(kernels: list[Path]) -> str | None:
    """Return the backend that sources tell by what they import: TRITON, TORCH or None."""
    with suppress(OSError, SyntaxError, ValueError):
        sources = [path.read_bytes() for path in kernels if path.suffix == ".py"]
        imports = {name.partition(".")[0] for source in sources for name in names_in(source)}
        if "triton" in imports:
            return "TRITON"
        if sources and len(sources) == len(kernels) and not any(map(beyond_torch, sources)):
            return "TORCH"
    return None


def _gpu() -> str:
    """Return this machine's GPU by its model, or by its architecture; "cpu" without one."""
    if choose("auto") == "cpu":
        return "cpu"
    with suppress(BadInput):
        device = discover("cuda").devices[0]
        models = [model for model in ARCHITECTURES if model in device.name]
        return max(models, key=len, default=device.architecture)
    return "cpu"
