"""What has to be there before round 1: every gap is listed at once."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pytest_kopt import policies, wire
from pytest_kopt.campaign import commands
from pytest_kopt.campaign.git.lineage import check_repository
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.git.submodules import nested_around
from pytest_kopt.campaign.git.worktrees import counterpart
from pytest_kopt.campaign.kernel import files_of
from pytest_kopt.campaign.manifest import Manifest, check_kernel_paths
from pytest_kopt.devices.pinning import discover, for_target
from pytest_kopt.errors import BadInput
from pytest_kopt.profiling import ncu, rocprof

_COMPILED = {".cu", ".cpp", ".cc", ".cxx", ".hip", ".c"}
_EDITABLE = "install the project editable (pip install -e .)"
_ON_PATH = 'put the tree on the path through pytest\'s own settings (pythonpath = ["."])'
_PROBE = "from pytest_kopt.session.probe import main; main()"


@dataclass(frozen=True, slots=True)
class Probe:
    """What collecting the tests in a fresh process showed.

    `modules` are the files of every imported module, `cases` the node ids marked kopt, `path` the
    folders in which modules were looked for, `profilers` what can tell GPU kernel time, if asked.
    `unknown_metric` says why the metric that is to decide is none of theirs.
    """

    cases: tuple[str, ...]
    modules: tuple[str, ...]
    failure: str = ""
    path: tuple[str, ...] = ()
    profilers: tuple[str, ...] = ()
    unknown_metric: str = ""


def gaps(
    given: Manifest, root: Path, *, elsewhere: bool = False, is_usable: bool = True
) -> list[str]:
    """Return one sentence for everything that is missing; empty when round 1 may run.

    With `elsewhere` the rounds run on another machine: its device is not looked for here. Where the
    manifest is not `is_usable`, or anything else is missing, the tests are not collected.
    """
    repository = Repository.around(root)
    found = tree_gaps(given, root, repository)
    for source in given.kernel_source:
        with listed(found):
            check_kernel_paths([source], root, repository.root if repository else root)
    suffixes = {Path(source).suffix for source in given.kernel_source}
    if suffixes & _COMPILED and given.rebuild_command is None:
        found.append("a compiled kernel needs rebuild_command (--rebuild 'COMMAND')")
    if given.project_skill and not (root / given.project_skill).is_file():
        found.append(f"project_skill: there is no file {given.project_skill!r}")
    found += _program_gaps(given, root)
    wants_kernel_time = bool(given.kernel_time)
    with listed(found):
        policy = policies.load(given.policy, root)
        wants_kernel_time = given.judges_by_kernel_time(policy.kernel_time)
    on_gpu = given.target_gpu != "cpu" and not elsewhere
    if given.target_gpu == "cpu" and given.target_lang.upper() == "TRITON":
        found.append(
            "target_gpu: on a CPU Triton's interpreter runs these kernels, its times mean nothing "
            "and every round would end with exit code 11 (legal: the GPU that decides, with "
            "--elsewhere if it is on another machine; to check only: pytest --kopt-check-only)"
        )
    if on_gpu:
        try:
            for_target(discover("cuda"), given.target_gpu)
        except BadInput as error:
            found.append(
                f"target_gpu: no {given.target_gpu} here, {error.what} (--elsewhere sets the "
                "campaign up for another machine, --gpu cpu for this one's CPU)"
            )
    if not _mentions_cases(given, root):
        found.append(_no_cases(given))
    if found or not is_usable:
        # To collect the tests imports torch: what is known by now is worth more than the wait.
        return found
    seen = probe(given, root, profilers=on_gpu and wants_kernel_time)
    if on_gpu and wants_kernel_time and not seen.profilers:
        found.append(
            "rounds are judged by GPU kernel time, which neither torch.profiler nor "
            f"{ncu.TOOL} nor {rocprof.TOOL} on PATH can measure here (policy {given.policy!r}; "
            "`kernel_time: false` has the benchmark judge alone)"
        )
    return found + _test_gaps(given, root, repository, seen)


@contextmanager
def listed(found: list[str]) -> Iterator[None]:
    """Add what is refused inside to a list of gaps."""
    try:
        yield
    except BadInput as error:
        found.append(str(error))


def _program_gaps(given: Manifest, root: Path) -> Iterator[str]:
    """Yield what of the manifest's commands cannot be started in the project root."""
    for key in Manifest.model_fields:
        text = getattr(given, key) if key.endswith("_command") else None
        if text is None:
            continue
        try:
            extra, words = commands.split(text)
        except BadInput as error:
            yield f"{key}: {error}"
            continue
        path = {**os.environ, **given.env, **extra}.get("PATH")
        # A name with a slash is looked for below the directory that the command runs in.
        program = str(root / words[0]) if "/" in words[0] else words[0]
        if shutil.which(program, path=path) is None:
            yield f"{key}: the program {words[0]!r} is not on PATH"


def probe(given: Manifest, root: Path, *, profilers: bool = False) -> Probe:
    """Collect the tests in a fresh process; `profilers` asks for those too, and imports torch."""
    with tempfile.TemporaryDirectory() as directory:
        answer = Path(directory) / "probe.json"
        done = subprocess.run(
            [
                *(sys.executable, "-c", _PROBE, str(answer), str(profilers)),
                *(given.primary_metric or "", *shlex.split(given.tests)),
            ],
            cwd=root,
            env={**os.environ, **given.env},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if not answer.exists():
            return Probe((), (), (done.stdout + done.stderr)[-1500:].strip())
        return wire.read(Probe, json.loads(answer.read_text()))


def tree_gaps(given: Manifest, root: Path, repository: Repository | None) -> list[str]:
    """Return what of the tree's state keeps a campaign from beginning here."""
    if repository is None or not given.git_commit:
        return []
    busy = repository.operation_in_progress()
    found = [f"git: {busy} is in progress; finish or abort it"] if busy else []
    if repository.head is None:
        return [*found, "git: the repository has no commit yet"]
    with listed(found):
        check_repository(given.kernel_source, root, repository)
    inside = [
        repository.relative(root, source)
        for source in given.kernel_source
        if (root / source).resolve().is_relative_to(repository.root.resolve())
        and nested_around(repository, root / source) is None
    ]
    dirty = repository.dirty(inside) if inside else []
    if dirty:
        found.append(f"git: commit the kernel first, {', '.join(dirty)} differs from HEAD")
    return found


def _no_cases(given: Manifest) -> str:
    where = f"`{given.tests}`" if given.tests else "pytest's default paths"
    return f"no test marked kopt is found under {where} (--tests 'ARGS' selects them)"


def _mentions_cases(given: Manifest, root: Path) -> bool:
    """Say whether a Python file that the tests' arguments name mentions kopt at all."""
    words = [word.partition("::")[0] for word in shlex.split(given.tests)]
    named = [root / word for word in words if not word.startswith("-") and (root / word).exists()]
    named = named or [path for path in (root / "tests",) if path.is_dir()]
    files = [file for path in named for file in files_of(path) if file.suffix == ".py"]
    return not files or any(b"kopt" in file.read_bytes() for file in files)


def _test_gaps(
    given: Manifest, root: Path, repository: Repository | None, seen: Probe
) -> list[str]:
    if seen.failure:
        return [f"the tests cannot be collected: {seen.failure}"]
    if not seen.cases:
        return [_no_cases(given)]
    found = [f"primary_metric: {seen.unknown_metric}"] if seen.unknown_metric else []
    for source in given.kernel_source:
        path = (root / source).resolve()
        if path.suffix != ".py" or str(path) in seen.modules:
            continue
        installed = {"site-packages", "dist-packages"}
        same_name = [file for file in map(Path, seen.modules) if file.name == path.name]
        wrong = [(f, _EDITABLE) for f in same_name if installed & set(f.parts)][:1]
        if repository:
            others = (counterpart(root, tree, repository) / source for tree in repository.trees)
            wrong += [(other, _ON_PATH) for other in others if str(other) in seen.modules]
        found += [
            f"kernel {source!r} is imported from {file}, not from this tree: {legal}"
            for file, legal in wrong
        ]
    return found
