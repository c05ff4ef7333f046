"""What a call has a GPU do, as it was recorded, and when two do the same.

Two launches are the same where function, grid, block, shared memory and arguments are: a function
that is one and the same in the process, or that Triton compiled to the same object; arguments by
their bytes, words that are addresses of a device's memory set aside. What cannot be read is never
the same as anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ConfigDict, TypeAdapter

_ANY = ".."


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: its kernel's name, how it is laid out, and what identifies its code.

    `code` is the digest of a compiled object, or a function's handle in this process. What the
    driver says that it `needs` is no part of a comparison. Of the bytes of its `arguments`, those
    that differ from one capture of the same call to the next are no code's: "..".
    """

    name: str
    grid: tuple[int, ...] = ()
    block: tuple[int, ...] = ()
    shared: int = 0
    code: str = ""
    arguments: tuple[str, ...] = ()
    needs: Mapping[str, float] = field(default_factory=dict, compare=False)

    def is_same(self, other: Launch) -> bool:
        """Say whether it is another version's launch as well."""
        return replace(self, arguments=()) == replace(other, arguments=()) and (
            len(self.arguments) == len(other.arguments)
            and all(map(_agree, self.arguments, other.arguments))
        )

    def settled(self, again: Launch) -> Launch:
        """Return it without what another capture of the same call does not repeat."""
        if len(self.arguments) != len(again.arguments):
            return self
        return replace(self, arguments=tuple(map(_common, self.arguments, again.arguments)))


def _agree(one: str, other: str) -> bool:
    return one == other or (
        len(one) == len(other)
        and all(a == b or _ANY in (a, b) for a, b in zip(_bytes(one), _bytes(other), strict=True))
    )


def _common(one: str, again: str) -> str:
    if len(one) != len(again):
        return one
    pairs = zip(_bytes(one), _bytes(again), strict=True)
    return "".join(a if a == b else _ANY for a, b in pairs)


def _bytes(word: str) -> list[str]:
    return [word[i : i + 2] for i in range(0, len(word), 2)]


@dataclass(frozen=True, slots=True)
class Recording:
    """What a call launches, and the compiled objects of it that are at hand, by digest.

    `unread` says why it is not all that the call does, "" where it is.
    """

    __pydantic_config__ = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")

    launches: tuple[Launch, ...]
    objects: Mapping[str, bytes] = field(default_factory=dict)
    unread: str = ""

    def is_same(self, other: Recording) -> bool:
        """Say whether the device does the same for both; never in doubt."""
        return (
            not (self.unread or other.unread)
            and len(self.launches) == len(other.launches)
            and all(map(Launch.is_same, self.launches, other.launches))
        )


RECORDING = TypeAdapter(Recording)


def to_document(recording: Recording) -> Any:
    """Return a recording as it goes from process to process."""
    return RECORDING.dump_python(recording, mode="json")
