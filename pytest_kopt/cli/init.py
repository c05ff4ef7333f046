"""`kopt init`: a campaign's manifest, once everything it needs is there."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from pytest_kopt import policies
from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.campaign.hold import hold
from pytest_kopt.campaign.layout import Layout, campaigns, check_name
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.prerequisites import gaps
from pytest_kopt.campaign.repository import Repository
from pytest_kopt.cli import quick_bench, templates
from pytest_kopt.cli.project import Commands, Project, command
from pytest_kopt.clock import now
from pytest_kopt.documents import validate
from pytest_kopt.errors import BadInput
from pytest_kopt.exit_codes import ExitCode
from pytest_kopt.schema.table import write_atomically
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
    parser.add_argument("--target", help="performance target, such as '>500 TFLOPS'")
    parser.add_argument("--max-iterations", type=int, metavar="N")
    parser.add_argument("--policy", help="decision policy")
    parser.add_argument("--branch", help="auto (optimize/NAME), none, or a branch name")
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
    script, document["quick_command"] = quick_bench.script(project, layout.quick_bench)
    given = validate(Manifest, document, where="kopt init")
    policies.load(given.policy)
    missing = gaps(given, project.root)
    if missing:
        print("not ready, nothing was written:", file=sys.stderr)
        for gap in missing:
            print(f"  - {gap}", file=sys.stderr)
        return ExitCode.USAGE
    if repository is not None:
        if given.git_branch not in ("none", repository.branch):
            _check_nobody_works_here(project)
            repository.switch(given.git_branch)
        project.keep_workspace_out_of_git()
    manifests.save(layout.manifest, given)
    write_atomically(layout.readme, campaign_readme(given))
    write_atomically(layout.quick_bench, script)
    print(given.to_yaml())
    for line in tips.lines(project.campaign(arguments.name)):
        print(line)
    print(f"written to {layout.manifest}; confirm the fields above, then:")
    print(f"  pytest --kopt-campaign {arguments.name} --kopt-round 1")
    return ExitCode.OK


def _check_nobody_works_here(project: Project) -> None:
    """Raise BadInput when a session on another campaign would find its branch gone."""
    for name in campaigns(project.workspace):
        with hold(Layout(project.workspace / name)):
            pass


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
        for key in ("schema", "created", "git_branch", "quick_command", "representative_shapes"):
            document.pop(key)
    given = {
        "target_op": arguments.op,
        "target_backend": arguments.backend,
        "target_lang": arguments.lang,
        "target_gpu": arguments.gpu,
        "performance_target": arguments.target,
        "primary_metric": arguments.metric,
        "kernel_source": [_relative(path, project.root) for path in arguments.kernel or []] or None,
        "tests": arguments.tests,
        "test_command": arguments.test,
        "max_iterations": arguments.max_iterations,
        "policy": arguments.policy,
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


def _relative(path: str, root: Path) -> str:
    found = Path(path)
    absolute = found if found.is_absolute() else Path.cwd() / found
    try:
        return absolute.relative_to(root).as_posix()
    except ValueError:
        raise BadInput(
            f"kernel {path!r} lies outside the project", where="--kernel", legal=f"below {root}"
        ) from None


def _environment(words: list[str] | None) -> dict[str, str] | None:
    if not words:
        return None
    for word in words:
        if "=" not in word:
            raise BadInput(f"{word!r} sets nothing", where="--env", legal="NAME=VALUE")
    return dict(word.split("=", 1) for word in words)
