"""`kopt compare` and `kopt time`: two versions side by side, or one alone."""

from __future__ import annotations

import argparse
import json

from pytest_kopt.cli.command_line import JSON, argument, command
from pytest_kopt.standalone.comparison import Cases, Outcome, both, check

_TESTS = argument(
    "tests",
    nargs="*",
    metavar="TESTS",
    help="files, folders or cases; default: testpaths of the project's settings",
)
_AT = argument(
    "--at",
    metavar="PATH",
    help="the file of the project that they are versions of, where the tests do not tell: "
    "kernels/softmax.py",
)


@command(
    "kopt compare old.py new.py tests/test_softmax.py",
    argument("old", metavar="OLD", help="a file, a folder or a git ref"),
    argument("new", metavar="NEW", help="the same kind: the version that is judged"),
    _TESTS,
    _AT,
    JSON,
)
def compare(arguments: argparse.Namespace) -> int:
    """Check two versions and compare them, without git and without a campaign: the PR check
    (pytest --kopt-base) in a copy of the project, which stays as it is. Words after -- go to
    pytest. Exit codes: 0 not slower, 8 slower or refused, 9 undecided, 1 wrong, 4 bad input.
    """
    cases = Cases.named(arguments.tests)
    with both(arguments.old, arguments.new, cases, arguments.at) as made:
        words = [*cases.within(made), *arguments.words]
        outcome = check(made, words, silent=arguments.json)
    if arguments.json:
        print(json.dumps(_document(outcome), indent=1))
    return outcome.code


def _document(outcome: Outcome) -> dict[str, object]:
    verdict = outcome.verdict and outcome.verdict.model_dump(mode="json")
    return {"exit_code": outcome.code, "reason": outcome.reason, "verdict": verdict}
