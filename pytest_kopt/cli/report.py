"""`kopt report`, `export`, `decide` and `mcp`: campaigns and CSV files, for people and agents."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_kopt import policies
from pytest_kopt.cli.command_line import EXAMPLE, argument, command
from pytest_kopt.decide.conclusion import VersionFacts
from pytest_kopt.decide.stored import StoredEvidence, decide_stored
from pytest_kopt.errors import BadInput
from pytest_kopt.options.project import Project
from pytest_kopt.schema.table import Classes, read_csv, write_atomically
from pytest_kopt.show.terminal import verdict_lines


@command(
    f"kopt report {EXAMPLE} -o report.html",
    argument(
        "names", nargs="*", metavar="NAME", help="campaigns; default: the branch's or the only one"
    ),
    argument(
        "-o",
        dest="output",
        type=Path,
        metavar="FILE",
        help="default: report.html in the campaign's directory, index.html in the workspace",
    ),
)
def report(arguments: argparse.Namespace) -> None:
    """Write a campaign's report as one HTML file; of several, an index and a file each."""
    project = Project.here()
    names: list[str | None] = list(dict.fromkeys(arguments.names)) or [None]
    write(project, names, arguments.output)


@command(
    f"kopt export {EXAMPLE} -o tables",
    argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="campaigns, by name or path; default: the branch's or the only one",
    ),
    argument("-o", dest="output", type=Path, metavar="DIR", required=True),
)
def export(arguments: argparse.Namespace) -> None:
    """Write campaigns as CSV tables: rounds, rows, pairs and profiles."""
    from pytest_kopt.analysis import frames as analysis

    frames = analysis.load(*arguments.names)
    for path, rows in analysis.export(frames, arguments.output).items():
        print(f"{path}: {rows} rows")
    if frames.missing:
        gone = f"{len(frames.missing)} file(s) of evidence, such as {frames.missing[0]}"
        print(f"not there any more: {gone}")


def write(project: Project, names: Sequence[str | None], output: Path | None) -> None:
    """Write the report of one campaign, or an index and the reports of several; print the paths."""
    from pytest_kopt.show.report.page import campaign_page, index_page

    if output is not None and output.suffix.lower() not in (".html", ".htm"):
        # Whatever else lies there is no report to replace.
        raise BadInput(f"{output} is not the name of an HTML file", where="-o", legal="NAME.html")
    campaigns = [project.campaign(name) for name in names]
    if len(campaigns) == 1:
        target = output or campaigns[0].layout.directory / "report.html"
        pages = {target: campaign_page(campaigns[0])}
    else:
        target = output or project.workspace / "index.html"
        files = [f"{campaign.name}.html" for campaign in campaigns]
        if target.name in files:
            raise BadInput(
                f"{target.name} is the report of a campaign", where="-o", fix="choose another name"
            )
        pages = {target: index_page(campaigns, files)}
        for campaign, file in zip(campaigns, files, strict=True):
            pages[target.with_name(file)] = campaign_page(campaign)
    for path, text in pages.items():
        write_atomically(path, text)
        print(f"{path} ({len(text.encode()) / 1e6:.2f} MB)", flush=True)


@command(
    "kopt decide --candidate new.csv --incumbent old.csv --json",
    argument("--candidate", type=Path, required=True, metavar="CSV", help="new figures"),
    argument("--incumbent", type=Path, required=True, metavar="CSV", help="old figures"),
    argument(
        "--remeasure",
        type=Path,
        action="append",
        default=[],
        metavar="CSV",
        help="the candidate, measured again; repeatable",
    ),
    argument("--primary", metavar="COLUMN", help="column, or several, comma-separated"),
    argument(
        "--classes",
        metavar="COLUMNS",
        default="",
        help="columns whose values form classes, comma-separated",
    ),
    argument(
        "--target-class", metavar="CLASS", help="the class that has to improve, as COLUMN=VALUE"
    ),
    argument(
        "--policy",
        default="primus",
        metavar="NAME|FILE",
        help="primus (default), kernel-opt or a file",
    ),
    argument(
        "--extra-benefit", metavar="TEXT", help="other benefit of a change that is equally fast"
    ),
    argument("--json", action="store_true", help="print verdict.json"),
)
def decide(arguments: argparse.Namespace) -> int:
    """Judge a candidate's CSV against the incumbent's by the rule for stored figures."""
    policy = policies.load(arguments.policy)
    columns = tuple(part.strip() for part in arguments.classes.split(",") if part.strip())
    evidence = StoredEvidence(
        candidate=read_csv(arguments.candidate),
        incumbent=read_csv(arguments.incumbent),
        remeasurements=tuple(read_csv(path) for path in arguments.remeasure),
        primary=arguments.primary,
        facts=VersionFacts(arguments.extra_benefit or ""),
        classes=Classes(columns, arguments.target_class),
    )
    verdict = decide_stored(evidence, policy).saying(thresholds=policy.model_dump(mode="json"))
    text = "\n".join(verdict_lines(verdict)).strip()
    print(json.dumps(verdict.model_dump(mode="json"), indent=1) if arguments.json else text)
    return verdict.exit_code


@command("claude mcp add kopt -- kopt mcp")
def mcp(_: argparse.Namespace) -> None:
    """Serve this project's campaigns to an agent: Model Context Protocol over stdin and stdout."""
    try:
        from pytest_kopt.cli.agent_tools import server
    except ModuleNotFoundError as error:
        # The SDK brings anyio.
        if (error.name or "").partition(".")[0] not in ("anyio", "mcp"):
            raise
        raise BadInput(
            "the MCP SDK is not installed", where="kopt mcp", fix="pip install 'pytest-kopt[mcp]'"
        ) from None
    # The protocol's own stream, not the one that makes text safe to show.
    with contextlib.redirect_stdout(sys.__stdout__):
        server().run("stdio")
