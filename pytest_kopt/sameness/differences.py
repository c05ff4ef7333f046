"""What differs between two recordings of what a call has a GPU do, kernel by kernel."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from math import prod

from pytest_kopt.decide.verdict import KernelChange
from pytest_kopt.sameness.objects import figures
from pytest_kopt.sameness.recording import RECORDING, Launch, Recording


def differences_later(before: object, after: object, arch: str) -> Future[list[KernelChange]]:
    """Have another thread find what differs between two recordings' documents.

    A disassembler takes a second: meanwhile versions are timed. Raises ValidationError for what is
    no document of a recording.
    """
    old, new = map(RECORDING.validate_python, (before, after))
    pool = ThreadPoolExecutor(1)
    found = pool.submit(differences, old, new, arch)
    pool.shutdown(wait=False)
    return found


def differences(before: Recording, after: Recording, arch: str) -> list[KernelChange]:
    """Return what differs between two versions' launches, one entry for each kernel's name.

    Of several launches of a name the first that differ stand for all. `arch` is as in the spec
    files. Nothing for recordings that only differ in their order. Where one of them was not read
    whole, only what Triton compiled is told of both.
    """
    if before.unread or after.unread:
        before, after = _of_objects(before), _of_objects(after)
    pairs: list[tuple[str, tuple[Launch | None, int], tuple[Launch | None, int]]] = []
    for name in dict.fromkeys(launch.name for launch in (*before.launches, *after.launches)):
        old, new = ([x for x in r.launches if x.name == name] for r in (before, after))
        alike = len(old) == len(new) and all(map(Launch.is_same, old, new))
        if not alike:
            unlike: Iterator[tuple[Launch | None, Launch | None]]
            unlike = ((o, n) for o, n in zip(old, new, strict=False) if not o.is_same(n))
            first, second = next(unlike, (old[0] if old else None, new[0] if new else None))
            pairs.append((name, (first, len(old)), (second, len(new))))
    with ThreadPoolExecutor(8) as pool:
        one = [pool.submit(_needs, *found, before.objects, arch) for _, found, _ in pairs]
        other = [pool.submit(_needs, *found, after.objects, arch) for _, _, found in pairs]
    return [
        KernelChange(kernel=name, before=old.result(), after=new.result())
        for (name, _, _), old, new in zip(pairs, one, other, strict=True)
    ]


def _of_objects(recording: Recording) -> Recording:
    """Return the launches whose objects are at hand, as far as they are known without a driver."""
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
    found = {"launches": float(count), **launch.needs}
    found |= {"blocks": float(prod(launch.grid))} if launch.grid else {}
    found |= {"threads": float(prod(launch.block))} if launch.block else {}
    if launch.code in objects:
        # Kernel code sent it: it may be no object at all.
        with suppress(struct.error, ValueError, IndexError):
            found |= figures(objects[launch.code], prod(launch.block), launch.shared, arch)
    return found
