"""The hosts of a session, and which of them a case is at home on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from pytest_kopt.devices.placement import ON_CPU
from pytest_kopt.devices.visible import interpreter_environment
from pytest_kopt.errors import BadInput
from pytest_kopt.processes.launcher import launcher_of
from pytest_kopt.processes.site import Place, Site
from pytest_kopt.session.distribution import has_local_workers


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
        """Where what was measured nowhere yet is measured: here, if workers are."""
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
                    f"measured on {uuid}, which no process that kopt starts there can see",
                    where=f"case {nodeid}",
                    legal="a host on which every process sees the same devices",
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
