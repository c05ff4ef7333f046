"""The prerequisites of a round: of the first, all gaps at once; a kernel that parses and is new."""

from __future__ import annotations

import os
import shlex
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_kopt import policies
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.git.worktrees import check_repository, nested_around
from pytest_kopt.campaign.kernel import files_of
from pytest_kopt.campaign.manifest import Manifest, check_kernel_paths, split_command
from pytest_kopt.decide.case_verdict import is_of_memory
from pytest_kopt.devices.pinning import discover, for_target
from pytest_kopt.errors import BadInput, KernelError
from pytest_kopt.sameness.sources import differing

_COMPILED = {".cu", ".cpp", ".cc", ".cxx", ".hip", ".c"}


def gaps(manifest: Manifest, root: Path, *, elsewhere: bool = False) -> list[str]:
    """Return one sentence for everything that is missing; empty when round 1 may run.

    With `elsewhere` the rounds run on another machine: its device is not looked for here. Nothing
    of the project is imported, which may build a kernel: what an import tells, round 1 does.
    """
    repository = Repository.around(root)
    missing = tree_gaps(manifest, root, repository)
    for source in manifest.kernel_source:
        with listed(missing):
            check_kernel_paths([source], root, repository.root if repository else root)
    suffixes = {Path(source).suffix for source in manifest.kernel_source}
    if suffixes & _COMPILED and manifest.rebuild_command is None:
        missing.append("a compiled kernel needs rebuild_command (--rebuild 'COMMAND')")
    if manifest.project_skill and not (root / manifest.project_skill).is_file():
        missing.append(f"project_skill: there is no file {manifest.project_skill!r}")
    missing += _program_gaps(manifest, root)
    with listed(missing):
        policies.load(manifest.policy, root)
    if manifest.target_gpu == "cpu" and manifest.target_lang.upper() == "TRITON":
        missing.append(
            "target_gpu: on a CPU Triton's interpreter runs these kernels, and every round ends "
            "with exit code 11. Fix: --gpu of the GPU that decides, with --elsewhere if it is in "
            "another machine; to check only: pytest --kopt-check-only"
        )
    if manifest.target_gpu != "cpu" and not elsewhere:
        try:
            for_target(discover("cuda"), manifest.target_gpu)
        except BadInput as error:
            missing.append(
                f"target_gpu: no {manifest.target_gpu} here, {error.what} (--elsewhere sets the "
                "campaign up for another machine, --gpu cpu for this one's CPU)"
            )
    return missing


def case_gaps(manifest: Manifest, root: Path) -> list[str]:
    """Return a sentence where no test mentions kopt; a session sees what it collects."""
    if _mentions_cases(manifest, root):
        return []
    where = f"`{manifest.tests}`" if manifest.tests else "pytest's default paths"
    return [f"no test marked kopt is found under {where} (--tests 'ARGS' selects them)"]


@contextmanager
def listed(missing: list[str]) -> Iterator[None]:
    """Add what is refused inside to a list of gaps."""
    try:
        yield
    except BadInput as error:
        missing.append(str(error))


def _program_gaps(manifest: Manifest, root: Path) -> Iterator[str]:
    """Yield what of the manifest's commands cannot be started in the project root."""
    for key in Manifest.model_fields:
        text = getattr(manifest, key) if key.endswith("_command") else None
        # The user runs that one, in a shell of their own: kopt's PATH may lack their `python`.
        if text is None or key == "quick_command":
            continue
        try:
            extra, words = split_command(text)
        except BadInput as error:
            yield f"{key}: {error}"
            continue
        path = {**os.environ, **manifest.env, **extra}.get("PATH")
        # A name with a slash is looked for below the directory that the command runs in.
        program = str(root / words[0]) if "/" in words[0] else words[0]
        if shutil.which(program, path=path) is None:
            yield f"{key}: the program {words[0]!r} is not on PATH"


def tree_gaps(manifest: Manifest, root: Path, repository: Repository | None) -> list[str]:
    """Return what of the tree's state keeps a campaign from beginning here."""
    if repository is None or not manifest.git_commit:
        return []
    busy = repository.operation_in_progress()
    missing = [f"git: {busy} is in progress; finish or abort it"] if busy else []
    if repository.head is None:
        return [*missing, "git: the repository has no commit yet"]
    with listed(missing):
        check_repository(manifest.kernel_source, root, repository)
    inside = [
        repository.relative(root, source)
        for source in manifest.kernel_source
        if (root / source).resolve().is_relative_to(repository.root.resolve())
        and nested_around(repository, root / source) is None
    ]
    dirty = repository.dirty(inside) if inside else []
    if dirty:
        missing.append(f"git: commit the kernel first, {', '.join(dirty)} differs from HEAD")
    return missing


def _mentions_cases(manifest: Manifest, root: Path) -> bool:
    """Say whether a Python file that the tests' arguments name mentions kopt at all."""
    words = [word.partition("::")[0] for word in shlex.split(manifest.tests)]
    named = [root / word for word in words if not word.startswith("-") and (root / word).exists()]
    named = named or [path for path in (root / "tests",) if path.is_dir()]
    files = [file for path in named for file in files_of(path) if file.suffix == ".py"]
    return not files or any(b"kopt" in file.read_bytes() for file in files)


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
            what = f"{type(error).__name__}: {why}; nothing was measured"
            raise KernelError(what, where=where) from None


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
