"""Taking a campaign away: its directory becomes a tarball next to the others."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path

from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.running import hold
from pytest_kopt.clock import now
from pytest_kopt.errors import storage_told


def remove(layout: Layout) -> Path:
    """Pack a campaign's directory, then delete it; return the tarball.

    BadInput while a session or command uses it. A kill leaves the directory, or the tarball, or
    both.
    """
    moment = "".join(character for character in now() if character.isdigit())
    kept = layout.workspace / f"{layout.name}-{moment}.tar.gz"
    unfinished = kept.with_name(f".{kept.name}.kopt-new")
    with hold(layout), storage_told():
        try:
            with tarfile.open(unfinished, "w:gz") as tarball:
                tarball.add(layout.directory, layout.name)
            with unfinished.open("rb") as stream:
                os.fsync(stream.fileno())
            os.replace(unfinished, kept)
        finally:
            unfinished.unlink(missing_ok=True)
        # Without its manifest it is no campaign, however far this comes.
        layout.manifest.unlink()
        shutil.rmtree(layout.directory)
    return kept
