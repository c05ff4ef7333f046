"""`kopt decide`: a stored verdict from CSV files, offline."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_kopt import policies
from pytest_kopt.cli.command_line import argument, command
from pytest_kopt.decide.stored import decide_stored
from pytest_kopt.decide.stored_evidence import StoredEvidence
from pytest_kopt.schema.table import Classes, read_csv
from pytest_kopt.show.terminal import verdict_lines


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
        extra_benefit=arguments.extra_benefit,
        classes=Classes(columns, arguments.target_class),
    )
    thresholds = {"thresholds": policy.model_dump(mode="json")}
    verdict = decide_stored(evidence, policy).model_copy(update=thresholds)
    text = "\n".join(verdict_lines(verdict)).strip()
    print(verdict.model_dump_json(indent=1) if arguments.json else text)
    return verdict.exit_code
