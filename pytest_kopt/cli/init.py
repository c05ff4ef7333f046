"""`kopt init`: a campaign's manifest, once everything it needs is there; or a template."""

from __future__ import annotations

import argparse
import os
import shlex
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from pytest_kopt import policies
from pytest_kopt.campaign import manifest as manifests
from pytest_kopt.campaign.campaign import Campaign
from pytest_kopt.campaign.git import worktrees
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.kernel import files_of
from pytest_kopt.campaign.layout import Layout, campaigns, check_name
from pytest_kopt.campaign.manifest import Manifest
from pytest_kopt.campaign.prerequisites import case_gaps, gaps, listed, tree_gaps
from pytest_kopt.campaign.running import hold
from pytest_kopt.cli import manifest_options, templates
from pytest_kopt.cli.command_line import argument, command
from pytest_kopt.clock import now
from pytest_kopt.devices.pinning import discover
from pytest_kopt.devices.vendor import choose
from pytest_kopt.documents import usable
from pytest_kopt.errors import BadInput
from pytest_kopt.imports import imports_from, is_imported, module_parts, names_in
from pytest_kopt.knowledge.facts import product_of
from pytest_kopt.options.project import Project
from pytest_kopt.schema.table import write_atomically
from pytest_kopt.show.files.summary import campaign_readme
from pytest_kopt.show.standing import tip_lines
from pytest_kopt.standalone.cases import beyond_torch
from pytest_kopt.standalone.child_session import tests_below
from pytest_kopt.trials.harness import HarnessWatch, PytestSetup, declaring
from pytest_kopt.versions.affected_modules import NATIVE_SUFFIXES
from pytest_kopt.versions.tree import project_files

#: The campaign's quick_test_bench.py; options of samples have a short name there.
_QUICK_BENCH = '''\
"""Checks and times the cases of quick rounds and judges nothing. Run it in the project."""
import os, sys
from pathlib import Path
import pytest
from pytest_kopt.campaign import levels
from pytest_kopt.options.project import Project

campaign = Project.here().campaign(Path(__file__).resolve().parent.name)
os.environ.update(campaign.manifest.env)
words = [word.replace("--repeats", "--kopt-repeats") for word in sys.argv[1:]]
words = [word.replace("--iters-per-repeat", "--kopt-iters-per-repeat") for word in words]
words += [f"--kopt-engine={campaign.manifest.engine}", *levels.quick_cases(campaign)]
sys.exit(pytest.main(words))
'''
#: What the rest is looked at with where a required key is missing or not legal.
_STAND_INS: dict[str, Any] = {
    **dict.fromkeys(("target_op", "target_backend", "target_lang"), "unknown"),
    "target_gpu": "cpu",
    "kernel_source": ["unknown"],
}
#: The backend that an imported module shows, the first one first.
_BACKENDS = {
    "triton": "TRITON",
    "flydsl": "FLYDSL",
    "cutlass": "CUTEDSL",
    "torch.utils.cpp_extension": "CUDA",
}


@command(
    "kopt init softmax_triton_sm90_20261121 --op softmax --kernel kernels/softmax.py "
    "--backend TRITON --gpu H200 --tests tests/test_softmax.py",
    argument("name", nargs="?", metavar="NAME", help="default: <op>_<backend>_<gpu>_<YYYYMMDD>"),
    argument(
        "--template",
        metavar="NAME",
        help=f"put a template into the project instead: {', '.join(templates.TEMPLATES)}",
    ),
    manifest_options.add_options,
    argument(
        "--elsewhere",
        action="store_true",
        help="the rounds run on another machine: do not look for its GPU and profilers here",
    ),
    argument(
        "--worktree",
        type=lambda text: Path(os.path.abspath(text)),
        metavar="DIR",
        help="make a git work tree at DIR and run there: ../gemm-tree",
    ),
    argument("--from", dest="old", metavar="OLD", help="take over OLD's settings: gemm_1"),
    argument("-v", "--verbose", action="store_true", help="show the whole manifest"),
)
def init(arguments: argparse.Namespace) -> None:
    """Set up a campaign: write its manifest, check what it needs, check out its branch.

    kopt finds out what the tree tells: the kernel that tests import, its backend, this machine's
    GPU. It prints a command for each file, if tests import several.
    """
    project = Project.here()
    if arguments.template:
        if arguments.name:
            what = "the option copies files, and begins no campaign"
            fix = f"kopt init --template {arguments.template}, then kopt init {arguments.name}"
            raise BadInput(what, where="--template", fix=fix)
        print("\n".join(templates.place(arguments.template, project)))
        return
    found = [] if arguments.old and arguments.name else _fill_in(arguments, project)
    repository = Repository.around(project.root)
    manifest = _checked(arguments, project, repository)
    branch_before = repository.branch if repository else None
    _write(arguments, project, repository, manifest)
    if repository is None:
        print("no git repository: snapshots keep every version, and nothing is committed")
    elif not arguments.worktree and manifest.git_branch != "none":
        before = f"checked out now; {branch_before or 'no branch'} is as it was"
        is_same = branch_before == manifest.git_branch
        print(f"branch: {manifest.git_branch}, {'as before' if is_same else before}")
    if found:
        print(f"chosen by kopt; options override them: {', '.join(found)}")
    print(manifest.to_yaml() if arguments.verbose else "\n".join(_in_short(manifest)))
    if repository is not None and manifest.git_commit:
        print(f"commits: by {repository.committer}; without hooks or signatures")
    print("\n".join(_what_follows(project.campaign(arguments.name), project.root)))


def _checked(
    arguments: argparse.Namespace, project: Project, repository: Repository | None
) -> Manifest:
    """Return the manifest that the arguments ask for; BadInput lists all that is missing for it."""
    missing: list[str] = []
    with listed(missing):
        check_name(arguments.name)
        if Layout(project.workspace / arguments.name).manifest.exists():
            raise BadInput(f"campaign {arguments.name!r} exists already", fix="choose another name")
    document = _document(arguments, project, repository, missing)
    manifest, wrong = usable(Manifest, document, _STAND_INS)
    missing += map(manifest_options.by_option, wrong)
    if wrong and manifest.kernel_source == _STAND_INS["kernel_source"]:
        manifest = manifest.model_copy(update={"kernel_source": []})
    if arguments.worktree:
        with listed(missing):
            branch = worktrees.branch_of(arguments.name, manifest)
            worktrees.check_new_tree(arguments.worktree, branch, repository)
        # The new tree has the kernel of HEAD: an edit here would silently stay behind.
        missing += tree_gaps(manifest, project.root, repository)
    if not arguments.worktree or missing:
        here = _gaps(manifest, project.root, elsewhere=arguments.elsewhere)
        missing += [gap for gap in here if gap not in missing]
    _refuse(missing)
    return manifest


def _gaps(manifest: Manifest, root: Path, *, elsewhere: bool) -> list[str]:
    return [*gaps(manifest, root, elsewhere=elsewhere), *case_gaps(manifest, root)]


def _write(
    arguments: argparse.Namespace,
    project: Project,
    repository: Repository | None,
    manifest: Manifest,
) -> None:
    """Make the tree and the files that are asked for; none is left after a failure."""
    root, layout = project.root, Layout(project.workspace / arguments.name)
    with ExitStack() as making:
        if arguments.worktree:
            branch = worktrees.branch_of(layout.name, manifest)
            assert repository is not None and branch is not None
            making.enter_context(worktrees.made(arguments.worktree, branch, repository))
            root = worktrees.counterpart(project.root, arguments.worktree, repository)
            _refuse(_gaps(manifest, root, elsewhere=arguments.elsewhere))
        script = Path(os.path.relpath(layout.quick_bench, root)).as_posix()
        command = f"python {shlex.quote(script)}"
        manifest = manifest.model_copy(update={"quick_command": command})
        stays = arguments.worktree or manifest.git_branch == "none"
        if repository is not None and not stays and manifest.git_branch != repository.branch:
            # A session on another campaign would find its branch gone.
            for name in campaigns(project.workspace):
                with hold(Layout(project.workspace / name)):
                    pass
            repository.switch(manifest.git_branch)
        project.keep_workspace_out_of_git()
        policy = policies.load(manifest.policy, project.root)
        write_atomically(layout.readme, campaign_readme(manifest, policy))
        write_atomically(layout.quick_bench, _QUICK_BENCH)
        manifests.save(layout.manifest, manifest)


def _what_follows(campaign: Campaign, here: Path) -> Iterator[str]:
    """Yield what there is to know before round 1, and its command."""
    if helpers := HarnessWatch(campaign, PytestSetup.at(campaign.root)).helpers():
        yield (
            f"the kernel imports {', '.join(helpers)} from outside kernel_source, which no round "
            f"may change; for a campaign that may: {declaring(campaign, helpers)}"
        )
    yield from tip_lines(campaign)
    checked = f"pytest --kopt-check-only {campaign.manifest.tests}".rstrip()
    yield f"to see in seconds what the cases do not test: {checked}"
    yield f"written to {campaign.layout.manifest}; read it and correct what is wrong, then:"
    if campaign.root != here:
        yield f"  cd {shlex.quote(str(campaign.root))}"
    yield f"  pytest --kopt-campaign {campaign.name} --kopt-round 1"


def _in_short(manifest: Manifest) -> Iterator[str]:
    """Yield what most campaigns differ in; `-v` and the file itself have the rest."""
    yield f"kernel: {', '.join(manifest.kernel_source)}"
    yield f"op: {manifest.target_op}, {manifest.target_backend} ({manifest.target_lang})"
    yield f"gpu: {manifest.target_gpu}"
    yield f"tests: {manifest.tests or 'as pytest collects them'}"
    yield f"metric: {manifest.primary_metric or 'the rate of a step, else of a forward'}"
    yield f"policy: {manifest.policy}, performance target: {manifest.performance_target or 'none'}"


def _refuse(missing: list[str]) -> None:
    """Raise BadInput that lists everything which is missing for round 1, if anything is."""
    if len(missing) == 1:
        raise BadInput(f"{missing[0]}; nothing was written")
    if missing:
        raise BadInput("not ready, nothing was written:" + "".join(f"\n  - {g}" for g in missing))


def _document(
    arguments: argparse.Namespace,
    project: Project,
    repository: Repository | None,
    missing: list[str],
) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if arguments.old:
        old = project.campaign(arguments.old).manifest
        document = old.model_dump(mode="json", by_alias=True)
        for key in ("schema", "created", "git_branch", "quick_command", "representative_shapes"):
            document.pop(key)
    if arguments.target_gpu:
        document.pop("target_model", None)
    document |= manifest_options.given(arguments, missing)
    document["execution_mode"] = "workspace" if arguments.worktree else "repo"
    if arguments.kernel_source:
        sources = arguments.kernel_source
        document["kernel_source"] = [_relative(path, project.root) for path in sources]
    document.setdefault("git_commit", repository is not None)
    branch = document.get("git_branch", "auto")
    branch = "none" if repository is None or missing else branch
    document["git_branch"] = f"optimize/{arguments.name}" if branch == "auto" else branch
    document["created"] = now()
    return document


def _relative(path: str, root: Path) -> str:
    """Return a path relative to the project root; as it is where it lies outside."""
    absolute = Path.cwd() / path
    return (absolute.relative_to(root) if absolute.is_relative_to(root) else absolute).as_posix()


def _fill_in(arguments: argparse.Namespace, project: Project) -> list[str]:
    """Set the arguments that were not given and can be known; return what was found out.

    The kernel is the one file of the project that tests of cases import; it tells the operator by
    its name and the backend by what it imports. The GPU is this machine's. BadInput where the
    kernel has to be chosen.
    """
    root, found = project.root, {}
    gpu = arguments.target_gpu or _gpu()
    if arguments.kernel_source is None and not arguments.old:
        kernel = _only_kernel(root, gpu, arguments.name)
        arguments.kernel_source = [str(root / kernel)]
        found["--kernel"] = kernel
    kernels = [Path(path) for path in arguments.kernel_source or ()]
    if arguments.target_op is None and len(kernels) == 1:
        arguments.target_op = found["--op"] = kernels[0].stem
    if arguments.target_backend is None and (backend := _backend(kernels, gpu, root)):
        arguments.target_backend = found["--backend"] = backend
    # A kernel for GPUs does not run on a CPU, but for Triton's interpreter.
    fits = gpu != "cpu" or arguments.target_backend not in {*_BACKENDS.values()} - {"TRITON"}
    if arguments.target_gpu is None and not arguments.elsewhere and fits:
        arguments.target_gpu = found["--gpu"] = gpu
    if arguments.name is None:
        words = (arguments.target_op, arguments.target_backend, arguments.target_gpu)
        day = now()[:10].replace("-", "")
        arguments.name = found["NAME"] = "_".join([*filter(None, words), day]).lower()
    return [f"{option} {text}" for option, text in found.items()]


def _only_kernel(root: Path, gpu: str, name: str | None) -> str:
    """Return the one file that tests of cases import, also by its package; or BadInput."""
    tests = [file for file in tests_below([root]) if b"kopt" in file.read_bytes()]
    tests = [file for file in tests if file.name.startswith("test_")]
    names = {name for test in tests for name in names_in(test.read_bytes())}
    packages = [path for path in project_files(root) if path.name == "__init__.py"]
    for package in (path for path in packages if is_imported(path, names)):
        names |= names_in((root / package).read_bytes())
    files = (path for path in project_files(root) if is_imported(path, names))
    kernels = [path.as_posix() for path in files if path.name not in ("__init__.py", "conftest.py")]
    if not kernels:
        what = "no test of a case imports a file of the project"
        raise BadInput(what, where="--kernel", fix="kopt init --kernel PATH")
    if len(kernels) > 1:
        backends = [_backend([root / kernel], gpu, root) or "BACKEND" for kernel in kernels]
        command = shlex.join(["kopt", "init", *filter(None, [name])])
        commands = (
            f"\n  {command} --kernel {shlex.quote(kernel)} --backend {backend} --gpu {gpu}"
            for kernel, backend in zip(kernels, backends, strict=True)
        )
        what = f"tests of cases import {len(kernels)} files that may be the kernel"
        raise BadInput(what, where="--kernel", fix=f"one of these{''.join(commands)}")
    return kernels[0]


def _backend(kernels: list[Path], gpu: str, root: Path) -> str | None:
    """Return the backend that the imports of sources show, None where they show none.

    The imports of the project's own files that they import count as well. A folder stands for the
    sources below it.
    """
    with suppress(OSError, SyntaxError, ValueError):
        kernels = [
            file
            for path in kernels
            for file in files_of(path)
            if file == path or file.suffix == ".py" or file.suffix in NATIVE_SUFFIXES
        ]
        sources = [path.read_bytes() for path in kernels if path.suffix == ".py"]
        files = [path for path in project_files(root) if path.suffix == ".py"]
        names = {name for step in imports_from(root, files, sources) for name in step}
        for module, backend in _BACKENDS.items():
            if any(f"{name}.".startswith(f"{module}.") for name in names):
                is_amd = backend == "CUDA" and gpu.upper().startswith(("GFX", "MI"))
                return "HIP" if is_amd else backend
        helpers = [(root / path).read_bytes() for path in files if is_imported(path, names)]
        beyond = {word for source in (*sources, *helpers) for word in beyond_torch(source)}
        # A call of one of torch's operators by its name is plain torch as well.
        modules = {part for path in files for part in module_parts(path)}
        if sources and len(sources) == len(kernels) and beyond <= {"ops", "cuda", *modules}:
            return "TORCH"
    return None


def _gpu() -> str:
    """Return this machine's GPU by its model, or by its architecture; "cpu" without one."""
    if choose("auto") == "cpu":
        return "cpu"
    with suppress(BadInput):
        device = discover("cuda").devices[0]
        product = product_of(device.name)
        return product.name if product else device.architecture
    return "cpu"
