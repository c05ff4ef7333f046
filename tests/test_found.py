"""The tables of docs/found.md are those of the records."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from tests.test_pages import ROOT

PAGE = (ROOT / "docs/found.md").read_text()


def recorded(name: str) -> Any:
    return json.loads((ROOT / f"docs/results/{name}.json").read_text())


def test_each_package_that_was_checked_on_a_gpu_has_its_row() -> None:
    became: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for row in recorded("strangers_h200")["rows"]:
        became[row["package"]][row["op"]].append(row["became"])
    for package, ops in became.items():
        right = sum(ways == ["PASS", "PASS"] for ways in ops.values())
        assert f"| {package} | {len(ops)} | {right} |" in PAGE
    assert f"{sum(map(len, became.values()))} operations at the declared inputs" in PAGE


def test_each_operation_that_was_tried_on_near_inputs_has_its_row() -> None:
    operations = recorded("found_cpu")["operations"]
    assert f"{len(operations)} operations on inputs near the declared ones" in PAGE
    for one in operations:
        wrong = ", ".join(dict.fromkeys(r["input"] for r in one["wrong"] if r["axis"])) or "none"
        wrong += " (not all tried)" if any(not row["axis"] for row in one["wrong"]) else ""
        assert f"| `{one['op']}` | {one['tried']} | {wrong} |" in PAGE


def test_the_figures_of_what_was_found_are_recorded() -> None:
    figures = recorded("found_cpu")["figures"]
    assert figures["cross_entropy, transposed: its gradient equals the logits"]
    assert 18 < max(figures["rope, largest error"].values()) < 19
    assert figures["rope, largest error"]["2 batches, 2 rows"] == 0
    norms = figures["group_norm"]
    assert f"is {norms['mean 100']['largest error']:.4f}, and " in PAGE
    assert f"and {norms['mean 100']['largest error of torch']:.6f} in torch" in PAGE
    assert norms["mean 10000"]["NaN"] > 0
    assert figures["1024 sums of 4096 squares, added in bfloat16"] == 2097152
    assert f"{figures['the same, added in float32']:.0f} in float32" in PAGE
    assert f"| {figures['kl_div']['mean 100']['theirs']:.0f} for inputs of bfloat16" in PAGE
    assert any(
        "reference 4194304, output 2097152" in row["why"]
        for row in recorded("strangers_h200")["rows"]
        if row["op"] == "group_norm"
    )
