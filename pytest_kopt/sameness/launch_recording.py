"""The launches of a call on a GPU as they were recorded, and what differs between two recordings.

Two launches are the same if function, grid, block, shared memory and arguments are. A function is
the same if it is one object in the process, or if Triton compiled it to the same object. Arguments
are compared by their bytes, without words that are addresses of a device's memory. A launch that
cannot be read is never the same. Imports no torch.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import prod
from typing import TYPE_CHECKING

from pydantic import ConfigDict, TypeAdapter

from pytest_kopt.sameness.objects import figures

if TYPE_CHECKING:
    from pytest_kopt.decide.verdict import KernelChange

_ANY = ".."


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: its kernel's name, how it is laid out, and what identifies its code.

    `code` is the digest of a compiled object, or a function's handle in this process. The driver's
    `needs` are no part of a comparison. Bytes of its `arguments` that differ from one capture of
    the same call to the next are set by no code: "..".
    """

    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared: int = 0
    code: str = ""
    arguments: tuple[str, ...] = ()
    needs: Mapping[str, float] = field(default_factory=dict, compare=False)

    def is_same(self, other: Launch) -> bool:
        return self.laid_out == other.laid_out and (
            [*map(len, self.arguments)] == [*map(len, other.arguments)]
            and all(
                mine == theirs or _ANY in (mine, theirs)
                for pair in zip(self.arguments, other.arguments, strict=True)
                for mine, theirs in _bytes(*pair)
            )
        )

    @property
    def laid_out(self) -> tuple[object, ...]:
        return self.name, self.grid, self.block, self.shared, self.code

    def settled(self, again: Launch) -> Launch:
        """Return it without what another capture of the same call does not repeat."""
        if len(self.arguments) != len(again.arguments):
            return self
        return replace(self, arguments=tuple(map(_common, self.arguments, again.arguments)))


def _common(one: str, again: str) -> str:
    if len(one) != len(again):
        return one
    return "".join(a if a == b else _ANY for a, b in _bytes(one, again))


def _bytes(one: str, other: str) -> list[tuple[str, str]]:
    return [(one[i : i + 2], other[i : i + 2]) for i in range(0, len(one), 2)]


@dataclass(frozen=True, slots=True)
class Recording:
    """The launches of a call, and its objects by digest; `unread` says why it is not all."""

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    launches: tuple[Launch, ...]
    objects: Mapping[str, bytes] = field(default_factory=dict)
    unread: str = ""

    def is_same(self, other: Recording) -> bool:
        return (
            not (self.unread or other.unread)
            and len(self.launches) == len(other.launches)
            and all(map(Launch.is_same, self.launches, other.launches))
        )


RECORDING = TypeAdapter(Recording)


def differences_later(before: object, after: object, arch: str) -> Future[list[KernelChange]]:
    """Have another thread find what differs between two documents; ValidationError for none."""
    old, new = map(RECORDING.validate_python, (before, after))
    pool = ThreadPoolExecutor(1)
    changes = pool.submit(differences, old, new, arch)
    pool.shutdown(wait=False)
    return changes


def differences(before: Recording, after: Recording, arch: str) -> list[KernelChange]:
    """Return what differs between two versions' launches, one entry for each kernel's name.

    If several launches of a name differ, the first stands for all. `arch` is as in the spec files.
    Nothing for recordings that only differ in their order. If one of them was not read whole, only
    what Triton compiled is compared.
    """
    from pytest_kopt.decide.verdict import KernelChange

    if before.unread or after.unread:
        before, after = _of_objects(before), _of_objects(after)
    pending = []
    with ThreadPoolExecutor(8) as pool:
        for name in dict.fromkeys(launch.name for launch in (*before.launches, *after.launches)):
            old, new = ([x for x in r.launches if x.name == name] for r in (before, after))
            if len(old) == len(new) and all(map(Launch.is_same, old, new)):
                continue
            unlike = (p for p in zip(old, new, strict=False) if not p[0].is_same(p[1]))
            first, second = next(unlike, (next(iter(old), None), next(iter(new), None)))
            one = pool.submit(_needs, first, len(old), before.objects, arch)
            pending.append((name, one, pool.submit(_needs, second, len(new), after.objects, arch)))
    return [
        KernelChange(kernel=name, before=one.result(), after=other.result())
        for name, one, other in pending
    ]


def _of_objects(recording: Recording) -> Recording:
    """Return the launches whose objects are at hand, without what only the driver shows."""
    launches = tuple(
        Launch(launch.name, (), (prod(launch.block),), launch.shared, launch.code)
        for launch in recording.launches
        if launch.code in recording.objects
    )
    return replace(recording, launches=launches)


def _needs(
    launch: Launch | None, count: int, objects: Mapping[str, bytes], arch: str
) -> dict[str, float]:
    """Return what a kernel needs and how often it is launched; nothing for one that is not."""
    if launch is None:
        return {}
    resources = {"launches": float(count), **launch.needs}
    resources |= {"blocks": float(prod(launch.grid))} if launch.grid else {}
    resources |= {"threads": float(prod(launch.block))} if launch.block else {}
    if launch.code in objects:
        # Kernel code sent it: it may be no object at all.
        with suppress(struct.error, ValueError, IndexError):
            resources |= figures(objects[launch.code], prod(launch.block), launch.shared, arch)
    return resources
