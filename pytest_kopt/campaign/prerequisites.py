"""What has to be there before round 1: every gap is listed at once."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from pytest_kopt.campaign import commands, manifest
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.repository import Repository
from pytest_kopt.campaign.worktrees import counterpart
from pytest_kopt.errors import BadInput

_COMPILED = {".cu", ".cpp", ".cc", ".cxx", ".hip", ".c"}
_PROBE = "from pytest_kopt.session.probe import main; main()"


@dataclass(frozen=True, slots=True)
class Probe:
    """What collecting the tests in a fresh process showed.

    `modules` are the files of every imported module, `cases` the node ids marked kopt, `path` the
    folders in which modules were looked for.
    """

    cases: tuple[str, ...]
    modules: tuple[str, ...]
    failure: str = ""
    path: tuple[str, ...] = ()


def gaps(given: Manifest, root: Path) -> list[str]:
    """Return one sentence for everything that is missing; empty when round 1 may run."""
    repository = Repository.around(root)
    found = tree_gaps(given, root, repository)
    try:
        manifest.check_kernel_paths(given, root, repository.root if repository else root)
    except BadInput as error:
        return [*found, str(error)]
    suffixes = {Path(source).suffix for source in given.kernel_source}
    if suffixes & _COMPILED and given.rebuild_command is None:
        found.append("a compiled kernel needs rebuild_command (--rebuild 'COMMAND')")
    for key in ("test_command", "rebuild_command", "format_command"):
        text = getattr(given, key)
        if text is not None:
            try:
                commands.split(text)
            except BadInput as error:
                found.append(f"{key}: {error}")
    return found + _test_gaps(given, root, repository, probe(given, root))


def probe(given: Manifest, root: Path) -> Probe:
    """Collect the campaign's tests in a fresh process with the manifest's environment."""
    with tempfile.TemporaryDirectory() as directory:
        answer = Path(directory) / "probe.json"
        done = subprocess.run(
            [sys.executable, "-c", _PROBE, str(answer), *shlex.split(given.tests)],
            cwd=root,
            env=commands.environment(given.env),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if not answer.exists():
            return Probe((), (), (done.stdout + done.stderr)[-1500:].strip())
        document = json.loads(answer.read_text())
        found = {name: tuple(document[name]) for name in ("cases", "modules", "path")}
        return Probe(**found, failure=document["failure"])


def tree_gaps(given: Manifest, root: Path, repository: Repository | None) -> list[str]:
    """Return what of the tree's state keeps a campaign from beginning here."""
    if repository is None or not given.git_commit:
        return []
    found = []
    busy = repository.operation_in_progress()
    if busy:
        found.append(f"git: {busy} is in progress; finish or abort it")
    if repository.head is None:
        found.append("git: the repository has no commit yet")
        return found
    inside = [
        repository.relative(root, source)
        for source in given.kernel_source
        if (root / source).resolve().is_relative_to(repository.root.resolve())
    ]
    dirty = repository.dirty(inside) if inside else []
    if dirty:
        found.append(f"git: commit the kernel first, {', '.join(dirty)} differs from HEAD")
    return found


def _test_gaps(
    given: Manifest, root: Path, repository: Repository | None, seen: Probe
) -> list[str]:
    if seen.failure:
        return [f"the tests cannot be collected: {seen.failure}"]
    if not seen.cases:
        where = f"`{given.tests}`" if given.tests else "pytest's default paths"
        return [f"no test marked kopt is found under {where} (--tests 'ARGS' selects them)"]
    found = []
    for source in given.kernel_source:
        path = (root / source).resolve()
        if path.suffix != ".py" or str(path) in seen.modules:
            continue
        elsewhere = [
            file
            for file in seen.modules
            if Path(file).name == path.name
            and {"site-packages", "dist-packages"} & set(Path(file).parts)
        ]
        if elsewhere:
            found.append(
                f"kernel {source!r} is imported from {elsewhere[0]}, not from this tree: "
                "install the project editable (pip install -e .)"
            )
        if repository is None:
            continue
        others = [counterpart(root, tree.path, repository) / source for tree in repository.trees]
        found += [
            f"kernel {source!r} is imported from {other}, not from this tree: put the tree on the "
            'path through pytest\'s own settings (pythonpath = ["."])'
            for other in others
            if str(other) in seen.modules
        ]
    return found
