"""Helpers shared by some of the kernels here."""

from collections.abc import Iterator


def tiles(extent: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover `range(extent)`."""
    for start in range(0, extent, size):
        yield slice(start, min(start + size, extent))
