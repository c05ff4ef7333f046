"""Many calls on equal content: each result is the same, or right all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator

from pytest_kopt.cases.running.checking import Checking
from pytest_kopt.honesty.finding import Finding
from pytest_kopt.numerics.determinism import same_bits
from pytest_kopt.numerics.nested import fresh_copies

#: So many calls, and so long at most: one wrong result in a hundred calls shows.
_CALLS, _SECONDS = 600, 0.1


def equal_calls(checking: Checking) -> Iterator[Finding]:
    """Compare results bit by bit; judge those that differ from the first."""
    seed = checking.seeds["disturb"]
    first, expected, before = None, None, checking.expected
    calls = differing = wrong = 0
    end = time.perf_counter() + _SECONDS
    while calls < _CALLS and time.perf_counter() < end:
        checking.restore()
        run = checking.candidate(checking.used, seed)
        calls += 1
        results = run.copies.results
        if expected is None or first is None:
            first = results
            expected = checking.expected = checking.truth(
                fresh_copies(checking.pristine), run.live, seed
            )
        elif len(first) == len(results) and all(map(same_bits, first, results)):
            continue
        else:
            differing += 1
        wrong += not all(comparison.passed for comparison in checking.judged(run))
    # Results of steps before and after it are not judged by this one's.
    checking.expected = before
    if differing and wrong:
        yield Finding(
            "not-deterministic",
            f"not deterministic: {differing} of {calls} calls on equal inputs differ from the "
            f"first, and {wrong} are wrong",
            advice="look for a race, or for state that a call leaves to the next",
            rejects=False,
        )
