"""The hosts of a session, by the options of xdist, and which of them a case is at home on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pytest_kopt.devices.pinning import ON_CPU, Placement
from pytest_kopt.devices.vendor import Device, choose, interpreter_environment
from pytest_kopt.errors import BadInput
from pytest_kopt.options.settings import choice as chosen
from pytest_kopt.processes.launcher import Starter, launcher_of
from pytest_kopt.processes.remote_host import RemoteHost


@dataclass(frozen=True, slots=True)
class Site:
    """A host that cases are measured on: this one, or another (`remote`).

    `kind` is what is measured on there ("cpu" or "cuda"), `environment` what every process that
    runs kernel code gets.
    """

    kind: str
    starter: Starter
    placement: Placement
    environment: Mapping[str, str]
    remote: RemoteHost | None = None

    @property
    def cores(self) -> int:
        return self.remote.cores if self.remote else os.cpu_count() or 1

    def path(self, path: Path) -> Path:
        """Return where something of the project lies there."""
        return self.remote.path(path) if self.remote else path

    def tree(self, root: Path, tree: Path) -> Path:
        """Return a tree there like one that was made here for the project below `root`."""
        return self.remote.tree(root, tree) if self.remote else tree

    def copy(self, root: Path, tree: Path | None = None) -> tuple[Path, Path] | None:
        """Return a folder around the project and what it is there, or `root` and a tree of it.

        None where the project lies there as it does here.
        """
        if tree is not None:
            return root, self.tree(root, tree)
        return self.remote.copied(root) if self.remote else None

    def environment_on(self, device: Device) -> dict[str, str]:
        """Return what a process on one of its devices gets."""
        return {**self.environment, **self.placement.host.pin(device)}


class Place(NamedTuple):
    """Cases that are measured one after the other, and the device of a host that they are on."""

    site: Site
    device: Device
    ids: list[str]


class Sites:
    """The host of this process (`here`) and others; `homes` are their names by node id."""

    def __init__(self, config: pytest.Config, kind: str, environment: Mapping[str, str]) -> None:
        """Begin without devices; `environment` is what every process gets on whatever host."""
        mine = interpreter_environment(kind) | dict(environment)
        self.here = Site(kind, launcher_of(config), ON_CPU, mine)
        self.homes: dict[str, str] = {}
        self._config = config
        self._remotes: dict[str, Future[Site]] = {}
        self._connecting = ThreadPoolExecutor(thread_name_prefix="kopt-hosts")

    @property
    def first(self) -> Site:
        """The site that measures what was measured nowhere yet: here, if workers are."""
        if has_local_workers(self._config) or not self._remotes:
            return self.here
        return self._there(next(iter(self._remotes)))

    def reach(self, name: str, open_site: Callable[[], Site]) -> None:
        """Connect to another host in the background, once; what fails is raised when it is used."""
        if name not in self._remotes:
            self._remotes[name] = self._connecting.submit(open_site)

    def lanes(self, uuids: Mapping[str, object], *, measured: bool) -> list[Place]:
        """Return node ids by host and device; BadInput where what `measured` one is gone."""
        by_site: dict[int, tuple[Site, dict[str, object]]] = {}
        for nodeid, uuid in uuids.items():
            site = self._home_of(nodeid, uuid)
            if measured and uuid and (site is None or site.placement.find(uuid) is None):
                raise BadInput(
                    f"ran on GPU {uuid}, which kopt's worker on this host cannot see",
                    where=f"case {nodeid}",
                    fix="set CUDA_VISIBLE_DEVICES to the same value for every process",
                )
            site = site or self.first
            by_site.setdefault(id(site), (site, {}))[1][nodeid] = uuid
            if site.remote:
                self.homes[nodeid] = site.remote.name
        return [
            Place(site, device, ids)
            for site, members in by_site.values()
            for device, ids in site.placement.group(members).items()
        ]

    def _home_of(self, nodeid: str, uuid: object) -> Site | None:
        if nodeid in self.homes:
            return self._there(self.homes[nodeid])
        sites = [self.first, *map(self._there, self._remotes)]
        return next((site for site in sites if site.placement.find(uuid)), None)

    def _there(self, name: str) -> Site:
        return self._remotes[name].result()

    def end(self) -> None:
        """Close the connections, and with them what runs at their other ends."""
        self._connecting.shutdown()
        for future in self._remotes.values():
            if future.exception() is None and (remote := future.result().remote):
                remote.end()
        self._remotes.clear()


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
            "a round starts more processes than xdist's, and a socket takes one connection",
            where=f"--tx {spec}",
            fix="ssh=HOST//python=PYTHON, or popen//python=COMMAND with a command that starts "
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
