"""Write the kept campaigns' reports as they look today, and the pictures of one in docs/pictures.

`python -m benchmarks.report_pictures` in the project's root; needs Chromium and the extra `report`.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import tempfile
from pathlib import Path

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.campaign.state import Round
from pytest_kopt.decide.verdict import KernelChange, Verdict
from pytest_kopt.show.report.page import campaign_page
from tests.chromium import chromium

DOCS = Path(__file__).parents[1] / "docs"
#: Eleven rounds of an RMSNorm on an H200.
SHOWN = DOCS / "campaigns/rmsnorm"


class Kept(Campaign):
    """A kept campaign with what `kept_campaigns_changes.py` told of its kernels afterwards."""

    def verdict(self, item: Round) -> Verdict | None:
        """Return the verdict of a round, what changed in the machine code with it."""
        told = json.loads((self.layout.directory / "kernels.json").read_text())["rounds"]
        kernels = [KernelChange(**change) for change in told.get(str(item.number), ())]
        found = super().verdict(item)
        return found and found.model_copy(update={"kernels": kernels})


def with_what_was_measured(new: str, old: str) -> str:
    """Return a report with the pairs and the environment of the one that its session wrote.

    The evidence behind them is too large to be kept; these lines are all that is left of it.
    """
    pairs = "".join(line for line in old.splitlines(True) if 'id="pairs-' in line)
    new = new.replace(
        '<script type="text/plain" id="kernels"', f'{pairs}<script type="text/plain" id="kernels"'
    )
    rows = re.findall(r"<tr><th>(?!env |evidence)[^:<]*</th><td>.*</td></tr>\n", old)
    return re.sub(r"<tr><th>evidence</th>.*\n", lambda _: "".join(rows), new)


def main() -> None:
    """Write `report.html` of every kept campaign, and a picture of each width and colour scheme."""
    for campaign in sorted((DOCS / "campaigns").iterdir()):
        with tempfile.TemporaryDirectory() as root:
            copy = Path(root, "agent/workspace", campaign.name)
            shutil.copytree(campaign, copy)
            opened = Kept(Layout(copy), Path(root))
            shutil.copytree(
                opened.layout.snapshot(opened.state.incumbent_round), root, dirs_exist_ok=True
            )
            text = campaign_page(opened).replace(f"{root}/", "")
        report = campaign / "report.html"
        report.write_text(with_what_was_measured(text, report.read_text()))
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as page:
        for width, scheme in itertools.product((1280, 400), ("light", "dark")):
            page.look(width, scheme)
            page.open(SHOWN / "report.html")
            page.screenshot(DOCS / f"pictures/report-{width}-{scheme}.png", height=900)


if __name__ == "__main__":
    main()
