from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from pytest_kopt.campaign.git import repository
from pytest_kopt.campaign.git.repository import Repository
from pytest_kopt.campaign.git.worktrees import contents_at, keeper
from pytest_kopt.errors import BadInput, CannotFinish

KERNEL = "kernels/a.py"
AUTHOR = ("-c", "user.name=Author", "-c", "user.email=author@example.org")


class Work:
    """A real repository with one kernel, one other file and no identity but its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir()
        self.git("init", "--quiet", "--initial-branch=main")
        self.write(KERNEL, "A = 1\n")
        self.write("other.py", "OTHER = 1\n")
        self.git("add", ".")
        self.git("commit", "--quiet", "-m", "first")

    def git(self, *words: str, check: bool = True) -> str:
        command = ["git", *AUTHOR, *words]
        done = subprocess.run(command, cwd=self.root, capture_output=True, text=True, check=check)
        return done.stdout.rstrip("\n")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def hook(self, name: str) -> Path:
        """Install a hook that fails, and return the file it leaves when it ran."""
        ran = self.root.parent / f"{name}-ran"
        path = self.root / ".git" / "hooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\ntouch '{ran}'\nexit 1\n")
        path.chmod(0o755)
        return ran

    def files_of_head(self) -> list[str]:
        return self.git("show", "--format=", "--name-only", "--no-renames", "HEAD").splitlines()

    def repository(self) -> Repository:
        found = Repository.around(self.root)
        assert found is not None
        return found


def as_in_the_tree(root: Path, *paths: str) -> dict[str, Path | None]:
    """Return what to commit so that the commit holds these paths as the tree does."""
    return {path: root / path if (root / path).exists() else None for path in paths}


@pytest.fixture(autouse=True)
def _no_identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    monkeypatch.setenv("HOME", str(nowhere))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(nowhere))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(nowhere / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for who in ("AUTHOR", "COMMITTER"):
        for what in ("NAME", "EMAIL"):
            monkeypatch.delenv(f"GIT_{who}_{what}", raising=False)
    monkeypatch.delenv("EMAIL", raising=False)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path / "project")


def test_a_directory_outside_of_git_has_no_repository(tmp_path: Path) -> None:
    assert Repository.around(tmp_path) is None
    assert Repository.around(tmp_path / "absent") is None


def test_a_bare_repository_has_no_tree_to_work_in(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", "--bare", str(tmp_path / "bare")], check=True)
    assert Repository.around(tmp_path / "bare") is None


def test_the_repository_is_found_from_any_directory_inside(work: Work) -> None:
    found = Repository.around(work.root / "kernels")
    assert found is not None
    assert found.root == work.root
    assert found.relative(work.root / "kernels", "a.py") == KERNEL


def test_branch_and_head_are_told(work: Work) -> None:
    repository = work.repository()
    assert repository.branch == "main"
    assert repository.head == work.git("rev-parse", "HEAD")


def test_a_detached_head_is_on_no_branch(work: Work) -> None:
    work.git("checkout", "--quiet", "--detach")
    repository = work.repository()
    assert repository.branch is None
    assert repository.head == work.git("rev-parse", "HEAD")


def test_a_repository_without_commits_has_a_branch_and_no_head(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", "-b", "main", str(tmp_path / "new")], check=True)
    found = Repository.around(tmp_path / "new")
    assert found is not None
    assert (found.branch, found.head) == ("main", None)


def test_a_commit_holds_the_kernel_files_and_nothing_else(work: Work) -> None:
    work.write(KERNEL, "A = 2\n")
    work.write("kernels/new.py", "NEW = 1\n")
    work.write("other.py", "OTHER = 2\n")
    work.write("untracked.txt", "mine\n")
    message = "[optimize] softmax TRITON round-2: fewer loads\n\nHypothesis: h\nResult: r\n"
    commit = work.repository().commit(as_in_the_tree(work.root, KERNEL, "kernels/new.py"), message)
    assert commit == work.git("rev-parse", "HEAD")
    assert work.files_of_head() == [KERNEL, "kernels/new.py"]
    assert work.git("log", "-1", "--format=%B").strip() == message.strip()
    assert work.git("status", "--porcelain").split("\n") == [" M other.py", "?? untracked.txt"]
    assert work.read("other.py") == "OTHER = 2\n"


def test_staged_work_of_others_stays_staged(work: Work) -> None:
    work.write("other.py", "OTHER = 2\n")
    work.write("fresh.py", "FRESH = 1\n")
    work.git("add", "other.py", "fresh.py")
    work.write("other.py", "OTHER = 3\n")
    work.write(KERNEL, "A = 2\n")
    work.repository().commit(as_in_the_tree(work.root, KERNEL), "round-2")
    assert work.files_of_head() == [KERNEL]
    assert sorted(work.git("status", "--porcelain").split("\n")) == ["A  fresh.py", "MM other.py"]
    assert work.git("show", ":other.py") == "OTHER = 2"


def test_what_was_measured_is_committed_even_when_something_else_is_staged(work: Work) -> None:
    work.write(KERNEL, "A = 'staged'\n")
    work.git("add", KERNEL)
    work.write(KERNEL, "A = 'measured'\n")
    work.repository().commit(as_in_the_tree(work.root, KERNEL), "round-2")
    assert work.git("show", f"HEAD:{KERNEL}") == "A = 'measured'"
    assert work.git("status", "--porcelain") == ""


def test_what_was_measured_is_committed_whatever_the_tree_holds_by_now(
    work: Work, tmp_path: Path
) -> None:
    (tmp_path / "measured.py").write_bytes(b"A = 2\n")
    work.write(KERNEL, "A = 'edited since'\n")
    files = {KERNEL: tmp_path / "measured.py"}
    commit = work.repository().commit(files, "round-2")
    assert work.git("show", f"HEAD:{KERNEL}") == "A = 2"
    assert work.git("status", "--porcelain") == f" M {KERNEL}"
    assert work.read(KERNEL) == "A = 'edited since'\n"
    assert work.repository().commit(files, "round-2") == commit == work.git("rev-parse", "HEAD")


@pytest.mark.parametrize(("trusted", "mode"), [("true", "100755"), ("false", "100644")])
def test_a_kernel_is_committed_with_its_permissions_where_git_trusts_them(
    work: Work, trusted: str, mode: str
) -> None:
    work.git("config", "core.fileMode", trusted)
    work.write(KERNEL, "A = 2\n")
    (work.root / KERNEL).chmod(0o755)
    work.repository().commit(as_in_the_tree(work.root, KERNEL), "round-2")
    assert work.git("ls-tree", "HEAD", KERNEL).startswith(mode)
    assert work.git("status", "--porcelain") == ""


def test_line_ends_are_converted_as_git_is_told_to(work: Work) -> None:
    work.write(".gitattributes", "*.py text\n")
    (work.root / KERNEL).write_bytes(b"A = 2\r\n")
    work.repository().commit(as_in_the_tree(work.root, KERNEL), "round-2")
    assert work.git("cat-file", "blob", f"HEAD:{KERNEL}") == "A = 2"


def test_nothing_is_committed_while_a_merge_waits(work: Work) -> None:
    work.git("switch", "--quiet", "-c", "side")
    work.write(KERNEL, "A = 2\n")
    work.git("commit", "--quiet", "-am", "side")
    work.git("switch", "--quiet", "main")
    work.git("merge", "--quiet", "--no-ff", "--no-commit", "side")
    with pytest.raises(CannotFinish, match="a merge is in progress"):
        work.repository().commit(as_in_the_tree(work.root, KERNEL), "round-2")


def test_a_kernel_file_that_is_gone_is_committed_as_gone(work: Work) -> None:
    (work.root / KERNEL).unlink()
    work.write("kernels/b.py", "B = 1\n")
    work.repository().commit(as_in_the_tree(work.root, KERNEL, "kernels/b.py"), "round-2")
    assert sorted(work.files_of_head()) == [KERNEL, "kernels/b.py"]
    assert work.git("ls-files", "kernels") == "kernels/b.py"


def test_nothing_new_is_no_commit(work: Work) -> None:
    before = work.git("rev-parse", "HEAD")
    work.write("other.py", "OTHER = 2\n")
    assert work.repository().commit(as_in_the_tree(work.root, KERNEL), "round-2") == before
    assert work.git("rev-parse", "HEAD") == before


def test_a_file_that_git_ignores_does_not_stop_the_commit(work: Work) -> None:
    work.write(".git/info/exclude", "*.so\n")
    work.write("kernels/built.so", "machine code")
    work.write(KERNEL, "A = 2\n")
    work.repository().commit(as_in_the_tree(work.root, KERNEL, "kernels/built.so"), "round-2")
    assert work.files_of_head() == [KERNEL]


def test_a_path_is_a_name_and_not_a_pattern(work: Work) -> None:
    work.write("kernels/ka.py", "OTHER = 1\n")
    work.git("add", "kernels/ka.py")
    work.git("commit", "--quiet", "-m", "another")
    work.write("kernels/ka.py", "OTHER = 2\n")
    work.write("kernels/k[ab].py", "PATTERN = 1\n")
    work.repository().commit(as_in_the_tree(work.root, "kernels/k[ab].py"), "round-2")
    assert work.files_of_head() == ["kernels/k[ab].py"]


def test_a_new_kernel_is_committed_where_untracked_files_are_not_shown(work: Work) -> None:
    work.git("config", "status.showUntrackedFiles", "no")
    work.write("kernels/new.py", "NEW = 1\n")
    work.repository().commit(as_in_the_tree(work.root, "kernels/new.py"), "round-2")
    assert work.files_of_head() == ["kernels/new.py"]


def test_without_an_identity_the_commit_is_the_plugins(work: Work) -> None:
    work.git("config", "user.useConfigOnly", "true")
    work.write(KERNEL, "A = 2\n")
    work.repository().commit(as_in_the_tree(work.root, KERNEL), "round-2")
    identity = "pytest-kopt <pytest-kopt@localhost>"
    assert work.git("log", "-1", "--format=%an <%ae>|%cn <%ce>") == f"{identity}|{identity}"


def test_an_identity_that_is_configured_is_used(work: Work) -> None:
    work.git("config", "user.name", "Ada")
    work.git("config", "user.email", "ada@example.org")
    work.write(KERNEL, "A = 2\n")
    work.repository().commit(as_in_the_tree(work.root, KERNEL), "round-2")
    assert work.git("log", "-1", "--format=%an <%ae>|%cn") == "Ada <ada@example.org>|Ada"


def test_an_author_in_the_environment_is_enough(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    work.git("config", "user.useConfigOnly", "true")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "Ada")
    monkeypatch.setenv("GIT_AUTHOR_EMAIL", "ada@example.org")
    work.write(KERNEL, "A = 2\n")
    work.repository().commit(as_in_the_tree(work.root, KERNEL), "round-2")
    assert work.git("log", "-1", "--format=%an <%ae>") == "Ada <ada@example.org>"


@pytest.mark.parametrize(
    "name",
    [
        *("pre-commit", "commit-msg", "prepare-commit-msg", "post-commit"),
        "reference-transaction",
    ],
)
def test_hooks_do_not_run(work: Work, name: str) -> None:
    ran = work.hook(name)
    work.write(KERNEL, "A = 2\n")
    work.repository().commit(as_in_the_tree(work.root, KERNEL), "round-2")
    assert work.files_of_head() == [KERNEL]
    assert not ran.exists()


@pytest.mark.parametrize("exists", [True, False])
def test_a_hook_that_fails_after_a_switch_leaves_the_tree_where_it_was(
    work: Work, exists: bool
) -> None:
    if exists:
        work.git("branch", "other")
    ran = work.hook("post-checkout")
    with pytest.raises(BadInput, match="the post-checkout hook failed"):
        work.repository().switch("other")
    assert ran.exists() and work.git("branch", "--show-current") == "main"
    assert bool(work.git("branch", "--list", "other")) is exists


def test_differing_and_untracked_files_are_dirty(work: Work) -> None:
    work.write(KERNEL, "A = 2\n")
    work.write("kernels/with space ü.py", "NEW = 1\n")
    paths = [KERNEL, "kernels/with space ü.py", "other.py"]
    assert sorted(work.repository().dirty(paths)) == paths[:2]


def test_a_file_that_head_lost_and_the_tree_has_again_changed_once(work: Work) -> None:
    base = work.git("rev-parse", "HEAD")
    work.git("rm", "--quiet", KERNEL)
    work.git("commit", "--quiet", "-m", "renamed")
    work.write(KERNEL, "from kernels.b import A\n")
    assert {p: mode for p, (mode, _) in work.repository().changed_since(base).items()} == {
        KERNEL: "100644"
    }


def test_a_renamed_file_is_dirty_under_names_that_exist(work: Work) -> None:
    work.git("mv", KERNEL, "kernels/b.py")
    found = work.repository().dirty([KERNEL, "kernels/b.py"])
    assert set(found) <= {KERNEL, "kernels/b.py"}
    assert "kernels/b.py" in found


def test_a_merge_in_progress_is_told(work: Work) -> None:
    assert work.repository().operation_in_progress() is None
    work.git("switch", "--quiet", "-c", "side")
    work.write(KERNEL, "A = 'side'\n")
    work.git("commit", "--quiet", "-a", "-m", "side")
    work.git("switch", "--quiet", "main")
    work.write(KERNEL, "A = 'main'\n")
    work.git("commit", "--quiet", "-a", "-m", "main")
    work.git("merge", "side", check=False)
    assert work.repository().operation_in_progress() == "a merge"
    work.git("merge", "--abort")
    assert work.repository().operation_in_progress() is None


def test_a_bisection_in_progress_is_told(work: Work) -> None:
    work.git("bisect", "start")
    assert work.repository().operation_in_progress() == "a bisection"


def test_a_branch_is_made_from_head_with_the_edits_in_the_tree(work: Work) -> None:
    work.write("other.py", "OTHER = 2\n")
    before = work.git("rev-parse", "HEAD")
    repository = work.repository()
    repository.switch("optimize/softmax")
    assert repository.branch == "optimize/softmax"
    assert repository.head == before
    assert work.read("other.py") == "OTHER = 2\n"


def test_a_branch_that_exists_is_checked_out(work: Work) -> None:
    repository = work.repository()
    repository.switch("optimize/softmax")
    work.write(KERNEL, "A = 2\n")
    commit = repository.commit(as_in_the_tree(work.root, KERNEL), "round-2")
    repository.switch("main")
    assert work.read(KERNEL) == "A = 1\n"
    repository.switch("optimize/softmax")
    assert (repository.head, work.read(KERNEL)) == (commit, "A = 2\n")


def test_a_switch_that_would_lose_edits_is_refused_and_changes_nothing(work: Work) -> None:
    repository = work.repository()
    repository.switch("optimize/softmax")
    work.write(KERNEL, "A = 2\n")
    repository.commit(as_in_the_tree(work.root, KERNEL), "round-2")
    work.write(KERNEL, "A = 'edited'\n")
    with pytest.raises(BadInput, match=r"git switch main: .*would be overwritten"):
        repository.switch("main")
    assert (repository.branch, work.read(KERNEL)) == ("optimize/softmax", "A = 'edited'\n")


def test_a_branch_name_that_git_does_not_take_is_refused(work: Work) -> None:
    work.git("branch", "optimize")
    with pytest.raises(BadInput, match=r"git switch -c optimize/softmax: .*cannot create"):
        work.repository().switch("optimize/softmax")


def test_the_main_tree_keeps_the_campaigns_of_all_trees(work: Work, tmp_path: Path) -> None:
    """Of a project in a folder of the repository, too; without a main tree each keeps its own."""
    linked, bare = tmp_path / "linked", tmp_path / "bare.git"
    work.git("worktree", "add", "--quiet", "-b", "side", str(linked))
    assert keeper(linked / "kernels") == work.root / "kernels"
    assert keeper(work.root / "kernels") == work.root / "kernels"
    assert keeper(tmp_path) == tmp_path
    work.git("clone", "--quiet", "--bare", str(work.root), str(bare))
    subprocess.run(["git", "worktree", "add", "-q", str(tmp_path / "own")], cwd=bare, check=True)
    assert keeper(tmp_path / "own") == tmp_path / "own"
    work.git("clone", "--quiet", "--separate-git-dir", "../data", str(work.root), "../apart")
    assert keeper(tmp_path / "apart") == tmp_path / "apart"


def test_a_linked_worktree_has_its_own_branch(work: Work) -> None:
    linked = work.root.parent / "linked"
    work.git("worktree", "add", "--quiet", "-b", "optimize/x", str(linked))
    found = Repository.around(linked)
    assert found is not None
    assert (found.root, found.branch) == (linked, "optimize/x")
    (linked / KERNEL).write_text("A = 2\n")
    found.commit(as_in_the_tree(linked, KERNEL), "round-2")
    assert work.read(KERNEL) == "A = 1\n"


def test_a_commit_waits_for_another_git(work: Work) -> None:
    """That of a second campaign in the same repository, say, holds the index for a moment."""
    lock = work.root / ".git" / "index.lock"
    lock.touch()
    work.write(KERNEL, "A = 2\n")
    threading.Timer(0.5, lock.unlink).start()
    assert work.repository().commit(as_in_the_tree(work.root, KERNEL), "round-2") == work.git(
        "rev-parse", "HEAD"
    )
    assert work.files_of_head() == [KERNEL]


def test_a_lock_that_stays_is_told(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repository, "_TRIES", 2)
    (work.root / ".git" / "index.lock").touch()
    work.write(KERNEL, "A = 2\n")
    with pytest.raises(CannotFinish, match=r"index\.lock"):
        work.repository().commit(as_in_the_tree(work.root, KERNEL), "round-2")


def test_a_replaced_object_is_not_what_a_commit_holds(work: Work) -> None:
    """`git replace` has every command of git show another file, unless it is asked not to."""
    first = work.repository().head
    assert first is not None
    work.write("slow.py", "A = 6\n")
    slow = work.git("hash-object", "-w", "slow.py")
    work.git("replace", work.git("rev-parse", f"{first}:{KERNEL}"), slow)
    assert work.git("show", f"{first}:{KERNEL}") == "A = 6"
    work.write(KERNEL, "A = 2\n")
    repository = work.repository()
    assert repository.content(first, KERNEL) == b"A = 1\n"
    assert contents_at(repository, first)[KERNEL] == b"A = 1\n"
    tree = work.root.parent / "at-first"
    repository.add_tree_at(tree, first)
    assert (tree / KERNEL).read_text() == "A = 1\n"
