"""What the options say of xdist workers: whether there are any, and how many on this host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pytest_kopt.devices.visible import choose
from pytest_kopt.errors import BadInput
from pytest_kopt.options.settings import choice as chosen


def spec_of(text: str) -> Any:
    import execnet

    return execnet.XSpec(text)


def proxies_of(config: pytest.Config) -> dict[str, Any]:
    return {spec.id: spec for spec in map(spec_of, config.getoption("px", None) or [])}


def host_of(spec: Any, proxies: dict[str, Any]) -> str:
    """Return the address, or the command, that reaches the host of a worker, "" for this host."""
    via = proxies.get(spec.via or spec.installvia or "")
    if via is not None:
        return host_of(via, {})
    if spec.socket:
        return str(spec.socket).rpartition(":")[0]
    command = str(spec.python or "") if spec.popen else ""
    return str(spec.ssh or spec.vagrant_ssh or (len(command.split()) > 1 and command) or "")


def connection_of(spec: Any, proxies: dict[str, Any]) -> str:
    """Return the spec of another connection to a worker's host; BadInput where there is none."""
    way = proxies.get(spec.via or "", spec)
    if spec.socket or spec.installvia or way.socket:
        raise BadInput(
            "a round starts processes beside the workers, and a socket takes one connection",
            where=f"--tx {spec}",
            legal="ssh=HOST//python=PYTHON, or popen//python=COMMAND with a command that starts "
            "Python there (srun … python3)",
        )
    words = ["popen"] if way.popen else []
    for key in ("ssh", "vagrant_ssh", "ssh_config", "python"):
        words += [f"{key}={value}"] if (value := getattr(way, key)) else []
    return "//".join([*words, *([f"chdir={spec.chdir}"] if spec.chdir else [])])


def is_distributed(config: pytest.Config) -> bool:
    option = config.option
    return getattr(option, "dist", "no") != "no" and not option.collectonly


def has_local_workers(config: pytest.Config) -> bool:
    return not is_distributed(config) or local_workers(config) > 0


def local_workers(config: pytest.Config) -> int:
    """Return how many xdist workers this host gets; `3*popen` stands for three."""
    proxies = proxies_of(config)
    tx: Sequence[str] = config.getoption("tx", None) or []
    workers = 0
    for text in tx:
        many, star, spec = text.partition("*")
        count, spec = (int(many), spec) if star and many.isdecimal() else (1, text)
        workers += 0 if host_of(spec_of(spec), proxies) else count
    return workers


def usable_gpus(config: pytest.Config) -> int | None:
    """Return the number of workers that `-n auto` stands for, None where GPUs are not used."""
    from pytest_kopt.devices.pinning import discover

    try:
        kind = choose(chosen(config, "kopt_device"))
        return len(discover(kind).devices) if kind == "cuda" else None
    except BadInput as error:
        raise pytest.UsageError(str(error)) from None
