"""The hosts of a session, by the options of xdist, and which of them a case is at home on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest

from pytest_kopt.devices.pinning import ON_CPU
from pytest_kopt.devices.vendor import Device, choose, interpreter_environment
from pytest_kopt.errors import BadInput
from pytest_kopt.options.settings import choice as chosen
from pytest_kopt.processes.launcher import launcher_of
from pytest_kopt.processes.remote_host import RemoteHost, Site

#: The host of each lane of a session that starts no worker of xdist.
_LANES: pytest.StashKey[list[str]] = pytest.StashKey()


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
        #: The host of each lane that xdist's options ask for, "" for this one; none: serial.
        self.asked = hosts_of(config)
        self._remotes: dict[str, Future[RemoteHost]] = {}
        self._connecting = ThreadPoolExecutor(thread_name_prefix="kopt-hosts")

    @property
    def has_here(self) -> bool:
        """Whether cases are measured on this host."""
        return not self.asked or "" in self.asked

    @property
    def first(self) -> Site:
        """The site that measures what was measured nowhere yet: here, if cases are."""
        return self.here if self.has_here or not self._remotes else self._there(self.asked[0])

    @property
    def at_once(self) -> Sequence[Device]:
        """The devices that this session may use at once for what was measured nowhere yet."""
        placement = self.first.placement
        number = self.asked.count("" if self.has_here else self.asked[0])
        return placement.devices[:number] if number else [placement.best]

    def lane(self, place: int) -> tuple[Site, Device]:
        """Return the host and the device of a lane or worker, by its place among those asked."""
        if not self.asked:
            return self.here, self.here.placement.best
        name = self.asked[place]
        site = self._there(name) if name else self.here
        return site, site.placement.device(self.asked[:place].count(name))

    def place(self, nodeid: str, place: int) -> None:
        """Note on which other host a case is measured."""
        if self.asked and (name := self.asked[place]):
            self.homes[nodeid] = name

    def reach(self, open_site: Callable[[str], RemoteHost]) -> None:
        """Connect to the other hosts in the background; what fails is raised when one is used."""
        for name in dict.fromkeys(filter(None, self.asked)):
            self._remotes[name] = self._connecting.submit(open_site, name)

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
            if site.name:
                self.homes[nodeid] = site.name
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
            if future.exception() is None:
                future.result().end()
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


def connect(config: pytest.Config, name: str, say: Callable[[str], None]) -> RemoteHost:
    """Connect to the host of this name, with the project copied there as xdist copies it."""
    from xdist.workermanage import NodeManager

    proxies = proxies_of(config)
    nodes = NodeManager(config)
    try:
        spec = next(spec for spec in nodes.specs if host_of(spec, proxies) == name)
        roots = nodes.roots if spec.chdir or not spec.popen else ()
        return RemoteHost(name, _connection_of(spec, proxies), roots, nodes.rsync_roots, say)
    finally:
        nodes.teardown_nodes()


def _connection_of(spec: Any, proxies: dict[str, Any]) -> str:
    """Return the spec of a connection to a worker's host without a proxy; BadInput for none."""
    if spec.installvia:
        raise BadInput(
            "kopt installs no server on another host",
            where=f"--tx {spec}",
            fix="ssh=HOST//python=PYTHON, or popen//python=COMMAND with a command that starts "
            "Python there (srun … python3)",
        )
    way = proxies.get(spec.via or "", spec)
    words = ["popen"] if way.popen else []
    for key in ("ssh", "vagrant_ssh", "ssh_config", "socket", "python"):
        words += [f"{key}={value}"] if (value := getattr(way, key)) else []
    return "//".join([*words, *([f"chdir={spec.chdir}"] if spec.chdir else [])])


def take_lanes(config: pytest.Config) -> None:
    """Have kopt open the lanes that xdist was asked for as workers."""
    config.stash[_LANES], config.option.dist = hosts_of(config), "no"


def hosts_of(config: pytest.Config) -> list[str]:
    """Return the host of each lane, or worker of xdist, that is asked for, "" for this one."""
    option = config.option
    if _LANES in config.stash or option.collectonly or getattr(option, "dist", "no") == "no":
        return config.stash.get(_LANES, [])
    from xdist.workermanage import parse_tx_spec_config

    proxies = proxies_of(config)
    return [host_of(spec_of(text), proxies) for text in parse_tx_spec_config(config)]


def usable_gpus(config: pytest.Config) -> int | None:
    """Return the number of workers that `-n auto` stands for, None where GPUs are not used."""
    from pytest_kopt.devices.pinning import discover

    try:
        kind = choose(chosen(config, "kopt_device"))
        return len(discover(kind).devices) if kind == "cuda" else None
    except BadInput as error:
        raise pytest.UsageError(str(error)) from None
