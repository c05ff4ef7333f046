"""Write the reports of docs/campaigns as they look today, and the pictures of one of them.

`python -m benchmarks.report_pictures` in the project's root; needs Chromium and the extra `report`.
The suite writes the reports too and compares them with the files. `report.sha256` names the report
that the pictures show.
"""

from __future__ import annotations

import hashlib
import itertools
import shutil
import tempfile
from pathlib import Path

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.layout import Layout
from pytest_kopt.show.report.page import campaign_page
from tests.chromium import chromium

DOCS = Path(__file__).parents[1] / "docs"
CAMPAIGNS = sorted(path for path in (DOCS / "campaigns").iterdir() if path.is_dir())
PICTURED = DOCS / "campaigns/gemm_fp8_blockwise/report.html"
PICTURES = DOCS / "pictures"


def report(campaign: Path) -> str:
    """Return the report of a campaign of docs/campaigns."""
    with tempfile.TemporaryDirectory() as root:
        copy = Path(root, "agent/workspace", campaign.name)
        shutil.copytree(campaign, copy)
        opened = Campaign(Layout(copy), Path(root))
        best = opened.layout.snapshot(opened.state.incumbent_round)
        shutil.copytree(best, root, dirs_exist_ok=True)
        return campaign_page(opened).replace(f"{root}/", "")


def main() -> None:
    for campaign in CAMPAIGNS:
        (campaign / "report.html").write_text(report(campaign))
    with tempfile.TemporaryDirectory() as profile, chromium(Path(profile)) as page:
        for width, scheme in itertools.product((1280, 400), ("light", "dark")):
            page.look(width, scheme)
            page.open(PICTURED)
            page.screenshot(PICTURES / f"report-{width}-{scheme}.png", height=1040)
    digest = hashlib.sha256(PICTURED.read_bytes()).hexdigest()
    (PICTURES / "report.sha256").write_text(f"{digest}\n")


if __name__ == "__main__":
    main()
