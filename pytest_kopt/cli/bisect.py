"""`kopt bisect`: which commit made it slow."""

from __future__ import annotations

import argparse
import signal
import sys

from pytest_kopt.cli.command_line import JSON, argument, command, show
from pytest_kopt.options.project import Project
from pytest_kopt.session.interruption import interrupt


@command(
    "kopt bisect v1.2 main -- tests/test_gemm.py",
    argument("good", metavar="GOOD", help="a commit before the slow one"),
    argument("bad", metavar="BAD", nargs="?", default="HEAD", help="default: HEAD"),
    JSON,
)
def bisect(arguments: argparse.Namespace) -> int:
    """Find the first commit after GOOD that is slower: each is compared with GOOD as the PR gate
    does, in a work tree of its own. Words after -- go to pytest. Exit code 8 if a commit is slower,
    0 if none is shown to be.
    """
    import pytest

    from pytest_kopt.bisect.bisect_report import exit_code, lines, report
    from pytest_kopt.bisect.bisection import Bisection, Journal, history
    from pytest_kopt.campaign.git.repository import Repository
    from pytest_kopt.standalone.made_trees import other_tree

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    root = Project.here().root
    commits = history(root, arguments.good, arguments.bad)
    repository = Repository.around(root)
    assert repository is not None
    key = (commits[0].hash, commits[-1].hash, str(root), *arguments.words)
    journal = Journal(repository, key)
    signal.signal(signal.SIGTERM, interrupt)
    try:
        with journal.locked(), other_tree(repository, commits[-1].hash) as tree:
            here = repository.root.resolve()
            bisection = Bisection(commits, journal, here, tree, arguments.words, say)
            document = report(bisection, bisection.run())
    except KeyboardInterrupt:
        say("interrupted: the same command goes on from here")
        return int(pytest.ExitCode.INTERRUPTED)
    journal.end()
    show(arguments, document, lines)
    return exit_code(document)
