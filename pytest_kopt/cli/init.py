"""`kopt init`: a campaign's manifest, once everything it needs is there."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_kopt import policies
from pytest_kopt.campaign import extraction, worktrees
from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.campaign.hold import hold
from pytest_kopt.campaign.layout import Layout, campaigns, check_name
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.prerequisites import gaps, tree_gaps
from pytest_kopt.campaign.repository import Repository
from pytest_kopt.cli import quick_bench, templates
from pytest_kopt.cli.project import Commands, Project, command
from pytest_kopt.clock import now
from pytest_kopt.documents import validate
from pytest_kopt.errors import BadInput
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.schema.table import write_atomically
from pytest_kopt.session.harness import pytest_section
from pytest_kopt.show import tips
from pytest_kopt.show.campaign_readme import campaign_readme


def add_parser(commands: Commands) -> None:
    parser = command(
        commands,
        "init",
        "Set up a campaign: write its manifest, check what it needs, check out its branch.",
        "kopt init softmax_triton_sm90_20261121 --op softmax --kernel kernels/softmax.py "
        "--backend TRITON --gpu H200 --tests tests/test_softmax.py",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "name", nargs="?", metavar="NAME", help="<op>_<backend>_<gpu>_<YYYYMMDD>, or any"
    )
    what.add_argument(
        "--template",
        metavar="NAME",
        help=f"put a template into the project instead: {', '.join(templates.TEMPLATES)}",
    )
    parser.add_argument("--op", help="target operator")
    parser.add_argument("--kernel", action="append", metavar="PATH", help="file to optimise")
    parser.add_argument("--backend", help="TRITON, CK, HIPBLASLT, TURBO, FLYDSL, TORCH, …")
    parser.add_argument("--gpu", metavar="ARCH", help="sm_90, gfx942, H200, MI300X, …, or cpu")
    parser.add_argument("--lang", help="language, where the backend does not say it")
    parser.add_argument("--metric", help="primary metric (default: combined step or forward)")
    parser.add_argument("--tests", metavar="'ARGS'", help="pytest arguments that select the cases")
    parser.add_argument(
        "--classes", metavar="COLUMNS", help="dims that tell classes of cases apart, as M or M,N"
    )
    parser.add_argument("--target", help="performance target, such as '>500 TFLOPS'")
    parser.add_argument("--max-iterations", type=int, metavar="N")
    parser.add_argument("--policy", help="decision policy")
    parser.add_argument("--branch", help="auto (optimize/NAME), none, or a branch name")
    parser.add_argument(
        "--worktree", metavar="DIR", help="make a work tree of git's at DIR and run there"
    )
    parser.add_argument(
        "--mode",
        choices=("repo", "workspace"),
        help="run here (repo), or on copies of kernel and tests in the campaign's directory",
    )
    parser.add_argument(
        "--bench", action="append", metavar="PATH", help="benchmark to copy into the workspace"
    )
    parser.add_argument("--env", action="append", metavar="NAME=VALUE", help="set in every worker")
    parser.add_argument("--rebuild", metavar="COMMAND", help="run before every round")
    parser.add_argument("--format", metavar="COMMAND", help="run before every round")
    parser.add_argument("--test", metavar="COMMAND", help="must pass before every round")
    parser.add_argument("--from", dest="old", metavar="OLD", help="take over OLD's settings")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    project = Project.here()
    if arguments.template:
        return _place(arguments.template, project.root)
    layout = Layout(project.workspace / check_name(arguments.name))
    if layout.manifest.exists():
        raise BadInput(f"campaign {arguments.name!r} exists already", legal="another name")
    repository = Repository.around(project.root)
    document = _document(arguments, project, repository)
    tree = Path(os.path.abspath(arguments.worktree)) if arguments.worktree else None
    given = validate(Manifest, document, where="kopt init")
    policy = policies.load(given.policy, project.root)
    try:
        with _root(tree, given, layout, project, repository) as root:
            _refuse(gaps(given, root))
            with _directory(arguments, given, layout, project, root) as (place, given):
                home = root if given.upstream is None else layout.directory
                script, command = quick_bench.script(home, layout.quick_bench)
                given = given.model_copy(update={"quick_command": command})
                if repository is not None:
                    if tree is None and given.git_branch not in ("none", repository.branch):
                        _check_nobody_works_here(project)
                        repository.switch(given.git_branch)
                    project.keep_workspace_out_of_git()
                write_atomically(place.readme, campaign_readme(given, policy))
                write_atomically(place.quick_bench, script)
                manifests.save(place.manifest, given)
    except _NotReady as error:
        print("not ready, nothing was written:", file=sys.stderr)
        for gap in error.gaps:
            print(f"  - {gap}", file=sys.stderr)
        return ExitCode.USAGE
    print(given.to_yaml())
    for line in tips.lines(project.campaign(arguments.name)):
        print(line)
    print(f"written to {layout.manifest}; confirm the fields above, then:")
    if home != project.root:
        print(f"  cd {shlex.quote(str(home))}")
    print(f"  pytest --kopt-campaign {arguments.name} --kopt-round 1")
    return ExitCode.OK


class _NotReady(Exception):
    """What is missing for round 1."""

    def __init__(self, gaps: list[str]) -> None:
        self.gaps = gaps
        super().__init__(*gaps)


def _refuse(missing: list[str]) -> None:
    if missing:
        raise _NotReady(missing)


def _check_nobody_works_here(project: Project) -> None:
    """Raise BadInput when a session on another campaign would find its branch gone."""
    for name in campaigns(project.workspace):
        with hold(Layout(project.workspace / name)):
            pass


@contextmanager
def _root(
    tree: Path | None,
    given: Manifest,
    layout: Layout,
    project: Project,
    repository: Repository | None,
) -> Iterator[Path]:
    """Yield the project root where the campaign will run: here, or in a tree that is made for it.

    That tree is gone again when what is done in it fails.
    """
    if tree is None:
        yield project.root
        return
    branch = worktrees.branch_of(layout.name, given)
    worktrees.check_new_tree(tree, branch, repository)
    assert repository is not None and branch is not None
    # The new tree has the kernel of HEAD: an edit here would silently stay behind.
    _refuse(tree_gaps(given, project.root, repository))
    with worktrees.made(tree, branch, repository):
        yield worktrees.counterpart(project.root, tree, repository)


@contextmanager
def _directory(
    arguments: argparse.Namespace, given: Manifest, layout: Layout, project: Project, root: Path
) -> Iterator[tuple[Layout, Manifest]]:
    """Yield where the campaign's documents are written, and its manifest."""
    if arguments.mode != "workspace":
        if arguments.bench:
            raise BadInput(
                "benchmarks are copied into a workspace only",
                where="--bench",
                legal="--mode workspace",
            )
        yield layout, given
        return
    benchmarks = [_relative(path, project.root, "--bench") for path in arguments.bench or []]
    settings = pytest_section(project.settings and root / project.settings)
    with extraction.extracted(given, root, layout, benchmarks, settings) as made:
        yield made


def _place(name: str, root: Path) -> int:
    placed = templates.place(name, root)
    for path in placed:
        print(f"written: {path}")
    if not placed:
        print("nothing to do: every file is there already")
    return ExitCode.OK


def _document(
    arguments: argparse.Namespace, project: Project, repository: Repository | None
) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if arguments.old:
        old = project.campaign(arguments.old).manifest
        document = old.model_dump(mode="json", by_alias=True)
        upstream = document.pop("upstream") or {}
        for key in ("kernel_source", "tests", "test_command") if upstream else ():
            document[key] = upstream[key]
        for key in ("schema", "created", "git_branch", "quick_command", "representative_shapes"):
            document.pop(key)
        arguments.mode = arguments.mode or document["execution_mode"]
        document["execution_mode"] = "repo"
    given = {
        "target_op": arguments.op,
        "target_backend": arguments.backend,
        "target_lang": arguments.lang,
        "target_gpu": arguments.gpu,
        "performance_target": arguments.target,
        "primary_metric": arguments.metric,
        "kernel_source": [_relative(path, project.root, "--kernel") for path in arguments.kernel]
        if arguments.kernel
        else None,
        "tests": arguments.tests,
        "test_command": arguments.test,
        "max_iterations": arguments.max_iterations,
        "policy": arguments.policy,
        "classes": _columns(arguments.classes),
        "env": _environment(arguments.env),
        "rebuild_command": arguments.rebuild,
        "format_command": arguments.format,
    }
    document |= {key: value for key, value in given.items() if value is not None}
    document.setdefault("git_commit", repository is not None)
    branch = arguments.branch or "auto"
    if repository is None:
        branch = "none"
    document["git_branch"] = f"optimize/{arguments.name}" if branch == "auto" else branch
    document["created"] = now()
    return document


def _relative(path: str, root: Path, option: str) -> str:
    found = Path(path)
    absolute = found if found.is_absolute() else Path.cwd() / found
    try:
        return absolute.relative_to(root).as_posix()
    except ValueError:
        raise BadInput(
            f"{path!r} lies outside the project", where=option, legal=f"below {root}"
        ) from None


def _columns(words: str | None) -> list[str] | None:
    if words is None:
        return None
    return [word.strip() for word in words.split(",") if word.strip()]


def _environment(words: list[str] | None) -> dict[str, str] | None:
    if not words:
        return None
    for word in words:
        if "=" not in word:
            raise BadInput(f"{word!r} sets nothing", where="--env", legal="NAME=VALUE")
    return dict(word.split("=", 1) for word in words)
