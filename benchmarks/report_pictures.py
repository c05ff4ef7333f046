"""Write the kept campaigns' reports as they look today, and the pictures of one in docs/pictures.

`python -m benchmarks.report_pictures` in the project's root; needs Chromium and the extra `report`.
"""

from __future__ import annotations

import itertools
import json
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
        (campaign / "report.html").write_text(text)
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as page:
        for width, scheme in itertools.product((1280, 400), ("light", "dark")):
            page.look(width, scheme)
            page.open(SHOWN / "report.html")
            page.screenshot(DOCS / f"pictures/report-{width}-{scheme}.png", height=900)


if __name__ == "__main__":
    main()
