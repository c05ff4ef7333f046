"""Tell what changed in the machine code in every compared round of docs/campaigns, without a GPU.

python benchmarks/kept_campaigns_changes.py [NAME...]

Compiles the snapshots of each round and of its incumbent for the card they were measured on, at the
shapes of their cases, and compares what Triton would launch. Writes `kernels.json` into each
campaign's folder, from which `python -m benchmarks.report_pictures` fills the reports. Verdicts are
not touched: the ledger holds their hashes. What torch launches by itself is not in it: there is no
device to capture.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import triton
from campaign_steps import load, names
from compile_kernels import ARCH, recorded

from pytest_kopt.decide.verdict import KernelChange, Verdict
from pytest_kopt.sameness.recording import differences
from pytest_kopt.show.words import kernel_rows

ROOT = Path(__file__).resolve().parents[1]


def compared(folder: Path) -> list[Verdict]:
    """Return the verdicts of a kept campaign's rounds after the baseline, in their order."""
    texts = (path.read_text() for path in folder.glob("rounds/*/verdict.json"))
    found = (Verdict.model_validate_json(text) for text in texts)
    return sorted((v for v in found if v.round != 1), key=lambda verdict: verdict.round or 0)


def changes(name: str, folder: Path) -> list[Verdict]:
    """Return the same verdicts with what changed in the kernels against the incumbent of then."""
    kernel, incumbent, told = load(name).kernel, 1, list[Verdict]()
    for verdict in compared(folder):
        assert verdict.round is not None
        before, after = (
            (folder / f"rounds/round-{number}/kernel_snapshot" / kernel).read_text()
            for number in (incumbent, verdict.round)
        )
        found: dict[str, KernelChange] = {}
        for case in verdict.shapes:
            both = (recorded(name, source, case.dims) for source in (before, after))
            for change in differences(*both, ARCH):
                named = change.model_copy(update={"case": case.label})
                found.setdefault(change.model_dump_json(), named)
        told.append(verdict.model_copy(update={"kernels": [*found.values()]}))
        incumbent = verdict.round if verdict.decision.keeps else incumbent
    return told


def main() -> None:
    for name in sys.argv[1:] or names():
        folder = ROOT / "docs/campaigns" / name
        told = changes(name, folder)
        document = {
            "compiled": f"{time.strftime('%Y-%m-%d')}, Triton {triton.__version__} for {ARCH}",
            "rounds": {
                verdict.round: [kernel.model_dump(mode="json") for kernel in verdict.kernels]
                for verdict in told
            },
        }
        (folder / "kernels.json").write_text(json.dumps(document, indent=1) + "\n")
        for verdict in told:
            print(f"{name} round {verdict.round}, {verdict.decision}: {verdict.reason}")
            for row in kernel_rows(verdict):
                print("   ", *row)


if __name__ == "__main__":
    main()
