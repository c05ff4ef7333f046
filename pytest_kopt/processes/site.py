"""A host that a session measures on: what starts its processes, its devices, and the project."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pytest_kopt.devices.placement import Placement
from pytest_kopt.devices.vendor import Device
from pytest_kopt.processes.launcher import Starter
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
