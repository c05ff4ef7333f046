"""Whether the tree holds something to measure: a kernel that parses, and not the incumbent's."""

from __future__ import annotations

import warnings

from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.decide.benefit import is_of_memory
from pytest_kopt.errors import BadInput, KernelError
from pytest_kopt.sameness.sources import differing


def check_parses(campaign: Campaign) -> None:
    """Raise KernelError for a Python file of the kernel that does not parse; imports nothing."""
    sources = campaign.candidate().sources
    for path in (path for path in sources if path.endswith(".py")):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                compile(sources[path], path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            # Python < 3.11.4 says ValueError of a null byte, without a line.
            line = getattr(error, "lineno", None)
            why = error.msg if isinstance(error, SyntaxError) else error
            where = f"{path}:{line}" if line else path
            raise KernelError(
                f"{where}: {type(error).__name__}: {why}; nothing was measured"
            ) from None


def check_differs(campaign: Campaign, extra_benefit: str | None) -> int | None:
    """Return the round whose code the kernel files hold, None where theirs is another.

    BadInput where they hold the incumbent's and no benefit is claimed for them; the same code takes
    the same memory.
    """
    number = campaign.state.incumbent_round
    if number is None or differing(campaign.incumbent().sources, campaign.candidate().sources):
        return None
    if extra_benefit and not is_of_memory(extra_benefit):
        return number
    is_open = campaign.state.has_begun(campaign.state.next_round)
    raise BadInput(
        f"the same code as round {number}: nothing to measure",
        where=", ".join(campaign.manifest.kernel_source),
        fix="save your edit, or change the code: comments and layout do not count; or give notes "
        "with extra_benefit" + "; kopt discard ends the open round" * is_open,
    )
