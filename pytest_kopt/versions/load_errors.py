"""Why a version could not be loaded beside the other one."""

from __future__ import annotations


class NotLoadable(Exception):
    """Both versions cannot live in one process; the message says why in a few words."""


class Unreached(NotLoadable):
    """The change does not reach the function through any import: both versions are the same."""
