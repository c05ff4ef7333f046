"""The bulk of a report: pairs and kernel files of every round, packed to stay small."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
import json
from collections.abc import Iterable
from typing import Any

from pytest_kopt.campaign.campaign import Campaign


def packed(data: Any) -> str:
    """Return data as JSON, gzip and base64: text that cannot end a script element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return packed_text(text)


def packed_text(text: str) -> str:
    """Return text as gzip and base64; the same text gives the same result."""
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def pairs(campaign: Campaign, number: int) -> dict[str, list[list[int]]]:
    """Return a round's pairs: by case, and for each process a list of whole numbers.

    A number is 2·g + o with the pair's gain g = incumbent / candidate − 1 in 0.01 % and o = 1 where
    the incumbent went first. Pairs of the A/A control are left out. Empty without a comparison.
    """
    path = campaign.layout.artifacts(number) / "pairs.csv"
    found: dict[str, dict[str, list[int]]] = {}
    try:
        with open(path, newline="") as stream:
            reader = csv.reader(stream)
            at = {name: place for place, name in enumerate(next(reader, []))}
            label, process, kind, order, new, old = (
                at[name]
                for name in (
                    *("label", "round_of_inference", "comparison", "position"),
                    *("candidate_ms", "incumbent_ms"),
                )
            )
            for row in reader:
                if row[kind] == "candidate":
                    gain = round((float(row[old]) / float(row[new]) - 1) * 1e4)
                    value = 2 * gain + (row[order] == "BA")
                    found.setdefault(row[label], {}).setdefault(row[process], []).append(value)
    except (OSError, KeyError, ValueError, IndexError, ZeroDivisionError, OverflowError):
        # Evidence that cannot be read is missing from the picture; the verdict stands by itself.
        return {}
    return {name: list(processes.values()) for name, processes in found.items()}


def kernels(campaign: Campaign, numbers: Iterable[int]) -> dict[str, Any]:
    """Return the kernel files of rounds: texts by hash, and for each round the hash by path."""
    texts: dict[str, str] = {}
    rounds: dict[str, dict[str, str]] = {}
    for number in numbers:
        directory = campaign.layout.snapshot(number)
        files = sorted(path for path in directory.rglob("*") if path.is_file())
        rounds[str(number)] = {}
        for path in files:
            content = path.read_bytes()
            key = hashlib.sha256(content).hexdigest()[:16]
            texts.setdefault(key, content.decode(errors="replace"))
            rounds[str(number)][path.relative_to(directory).as_posix()] = key
    return {"texts": texts, "rounds": rounds}
