"""The git repository of a campaign, through GitPython: branch, commit of kernel files."""

from __future__ import annotations

import os
import re
import stat
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from pytest_kopt.errors import BadInput, CannotFinish

if TYPE_CHECKING:
    from git import Repo

_IN_PROGRESS = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "BISECT_LOG": "a bisection",
}


#: What git says while another git holds the index or a ref.
_LOCKED = re.compile(r"\.lock': File exists|cannot lock ref")
_TRIES, _PAUSE_SECONDS = 50, 0.1

#: Characters of a command that a message shows.
_SHOWN = 80

#: Who commits where git has no identity.
_NAME, _EMAIL = "pytest-kopt", "pytest-kopt@localhost"

ABSENT, LINK, SUBMODULE = "000000", "120000", "160000"


class Repository:
    """The work tree around a directory."""

    def __init__(self, repo: Repo) -> None:
        self._repo = repo
        self.root = Path(str(repo.working_tree_dir))

    @classmethod
    def around(cls, directory: Path) -> Repository | None:
        """Return the repository that holds `directory`, None where there is none.

        Raises BadInput, with git's words, for a repository in which git refuses to work.
        """
        try:
            import git
        except ImportError:  # GitPython refuses to be imported where there is no git
            return None
        try:
            repo = git.Repo(directory, search_parent_directories=True)
        except (git.InvalidGitRepositoryError, git.NoSuchPathError):
            return None
        if repo.bare:
            return None
        # `git replace` in this clone would put another file or commit in place of a base's.
        repo.git.update_environment(GIT_NO_REPLACE_OBJECTS="1")
        repository = cls(repo)
        # Git works in no tree of another owner, and says how to allow it.
        repository._git("rev-parse", "--git-dir")
        return repository

    @property
    def branch(self) -> str | None:
        """The current branch, None on a detached HEAD."""
        return None if self._repo.head.is_detached else self._repo.head.reference.name

    @property
    def head(self) -> str | None:
        """The commit of HEAD, None in a repository without commits."""
        return self._repo.head.commit.hexsha if self._repo.head.is_valid() else None

    @property
    def trees(self) -> dict[Path, str | None]:
        """The work trees on disk, the main one first if any, by branch (None: detached HEAD)."""
        roots: dict[Path, str | None] = {}
        for block in self._git("worktree", "list", "--porcelain").split("\n\n"):
            fields = dict(line.partition(" ")[::2] for line in block.splitlines())
            path = Path(fields.get("worktree", ""))
            # For a submodule git names the folder of its database, which is no tree.
            if {"bare", "prunable"}.isdisjoint(fields) and (path / ".git").exists():
                roots[path] = fields.get("branch", "").removeprefix("refs/heads/") or None
        return roots

    @property
    def main_tree(self) -> Path | None:
        """The root of the main work tree, as every tree finds it: where `.git` is the database.

        None where there is none: a bare repository, a submodule, a `.git` kept elsewhere.
        """
        common = self.database
        roots = [tree.resolve() for tree in self.trees]
        return common.parent if common.name == ".git" and common.parent in roots else None

    @property
    def database(self) -> Path:
        """The folder in which git keeps what all trees of this repository share."""
        return Path(self._repo.common_dir).resolve()

    @property
    def is_submodule(self) -> bool:
        return bool(self._git("rev-parse", "--show-superproject-working-tree"))

    @property
    def is_shallow(self) -> bool:
        """Whether history was cut off when this clone was made."""
        return self._git("rev-parse", "--is-shallow-repository") == "true"

    def _git(self, *words: str, env: Mapping[str, str] | None = None) -> str:
        """Return what a git command prints; BadInput, with git's own words, where it fails."""
        code, printed, why = self._run(*words, env=env)
        if code:
            raise BadInput(" ".join(why.split()), where=" ".join(["git", *words])[:_SHOWN])
        return printed

    def _answer(self, *words: str) -> str | None:
        """Return what a git command prints, None where it fails."""
        code, printed, _ = self._run(*words)
        return None if code else printed

    def _run(
        self,
        *words: str,
        env: Mapping[str, str] | None = None,
        stdin: BinaryIO | None = None,
    ) -> tuple[int, str, str]:
        code, printed, why = self._repo.git.execute(
            ["git", *words],
            istream=stdin,
            env=env,
            with_extended_output=True,
            with_exceptions=False,
        )
        return code, str(printed), str(why)

    def commit_of(self, ref: str) -> str | None:
        """Return the commit that a ref names, None when it names none here."""
        words = ("--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
        return self._answer("rev-parse", *words)

    def merge_base(self, commit: str) -> str | None:
        """Return the last common ancestor of a commit and HEAD, None when none is known here."""
        return self._answer("merge-base", commit, "HEAD")

    def changed_since(self, commit: str) -> dict[str, tuple[str, str]]:
        """Return the paths that the work tree has otherwise than a commit, untracked ones too.

        Each comes with the mode and the content that the commit had of it, as git calls them. A
        path that is a submodule in one of the two has the mode of one, unless it was a link.
        """
        words = ("--raw", "-z", "--no-abbrev", "--no-renames", "--ignore-submodules=none")
        raw = self._git("diff", *words, commit, "--").split("\0")
        changes = {}
        for head, path in zip(raw[::2], raw[1::2], strict=False):
            old, new, content = head.removeprefix(":").split()[:3]
            changes[path] = SUBMODULE if new == SUBMODULE and old != LINK else old, content
        untracked = self._git("ls-files", "--others", "--exclude-standard", "-z").split("\0")
        # What HEAD lost and the tree has again is untracked too.
        added = sorted({*filter(None, untracked)} - {*changes})
        return changes | dict.fromkeys(added, (ABSENT, ""))

    def committed_since(self, commit: str) -> list[str]:
        paths = self._git("diff", "--name-only", "-z", "--no-renames", commit, "HEAD", "--")
        return [path for path in paths.split("\0") if path]

    def is_ancestor(self, old: str, new: str) -> bool:
        """Say whether a commit is another one, or an ancestor of it."""
        return self._answer("merge-base", "--is-ancestor", old, new) is not None

    def begin_bisection(self, good: str, bad: str) -> None:
        self._git("bisect", "start", "--no-checkout", "--first-parent", bad, good)

    def suspects(self) -> list[str]:
        """Return the commits that may be the first bad one; the latest comes first, and is bad."""
        rest = ("refs/bisect/bad", "--not", "--glob=refs/bisect/good-*")
        return self._git("rev-list", "--first-parent", *rest).split()

    def subject_of(self, commit: str) -> str:
        return self._git("show", "--no-patch", "--format=%s", commit)

    def blobs(self, commit: str) -> dict[str, str]:
        """Return the paths of a commit, each with what git calls its content and mode."""
        listing = self._git("ls-tree", "-r", "-z", "--full-tree", commit).split("\0")
        return {path: about for about, _, path in (e.partition("\t") for e in listing if e)}

    def content(self, commit: str, path: str) -> bytes:
        """Return a file as a check-out of a commit would have it."""
        code, content, why = self._repo.git.execute(
            ["git", "cat-file", "--filters", f"{commit}:{path}"],
            with_extended_output=True,
            with_exceptions=False,
            stdout_as_string=False,
            strip_newline_in_stdout=False,
        )
        if code:
            raise BadInput(" ".join(str(why).split()), where=f"{path} at {commit[:12]}")
        assert isinstance(content, bytes)
        return content

    def committed(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return what HEAD holds of files, b"" for one that it lacks; without what git ignores."""
        paths = set(paths)
        contents = {}
        for path in sorted(paths - self.ignored(paths)):
            try:
                contents[path] = self.content("HEAD", path)
            except BadInput:
                contents[path] = b""
        return contents

    def ignored_sources(self) -> list[str]:
        """Return the Python sources that git does not know and is told to ignore."""
        words = ("--others", "--ignored", "--exclude-standard", "-z", "--", "*.py")
        return [path for path in self._git("ls-files", *words).split("\0") if path]

    def listed(self, folder: Path) -> tuple[list[str], list[str]]:
        """Return the files below a folder that git tracks, and those it neither tracks nor ignores.

        Paths are relative to the folder; a submodule, or a repository in this one, is one path.
        """
        words = ("-C", str(folder), "ls-files", "-z")
        listings = (self._git(*words), self._git(*words, "--others", "--exclude-standard"))
        tracked, others = ([*filter(None, text.split("\0"))] for text in listings)
        return tracked, others

    def ignored(self, paths: Iterable[str]) -> set[str]:
        """Return those of `paths` that git ignores; it tells of none in a submodule."""
        with tempfile.TemporaryFile() as names:
            names.write("".join(f"{path}\0" for path in paths).encode())
            names.seek(0)
            _, printed, _ = self._run("check-ignore", "-z", "--stdin", stdin=names)
        return {*filter(None, printed.split("\0"))}

    def operation_in_progress(self) -> str | None:
        """Return "a merge", "a rebase", … where git waits for the user to finish one."""
        operations = (_IN_PROGRESS[n] for n in _IN_PROGRESS if Path(self._repo.git_dir, n).exists())
        return next(operations, None)

    def dirty(self, paths: Iterable[str]) -> list[str]:
        """Return those of `paths` (relative to the root) that differ from HEAD or are untracked."""
        listing = self._git("status", "--porcelain", "-z", "--no-renames", "-uall", "--", *paths)
        return [entry[3:] for entry in listing.split("\0") if entry]

    def switch(self, branch: str) -> None:
        """Check out a branch, made from HEAD when it does not exist; edits stay in the tree.

        BadInput, with the tree on its own branch as before, where git or a hook of its refuses.
        """
        is_new, before = not self.has_branch(branch), self.branch
        words = ("switch", *["-c"] * is_new, branch)
        code, _, why = self._run(*words)
        if not code:
            return
        what = " ".join(why.split())
        if before and before != branch == self.branch:
            # git runs this hook when it has switched.
            what = f"the post-checkout hook failed: {what}"
            self._git("-c", "core.hooksPath=/dev/null", "switch", before)
            if is_new:
                self._git("branch", "-D", branch)
        raise BadInput(what, where=" ".join(["git", *words])[:_SHOWN])

    def add_tree(self, path: Path, branch: str) -> None:
        """Add a work tree on a branch, made from HEAD when it does not exist."""
        place = [str(path), branch] if self.has_branch(branch) else ["-b", branch, str(path)]
        self._git("worktree", "add", "--quiet", *place)

    def add_tree_at(self, path: Path, commit: str) -> None:
        """Add a work tree on no branch that holds a commit."""
        self._git("worktree", "prune")
        self._git("worktree", "add", "--quiet", "--detach", "--force", str(path), commit)

    def successor(self, parent: str, commit: str) -> str:
        """Return a new commit, on no branch, with the contents of one and another as parent."""
        words = ("commit-tree", f"{commit}^{{tree}}", "-p", parent, "-m", f"As {commit}")
        return self._git(*words, env=self._identity())

    def move_to(self, commit: str) -> None:
        """Have this work tree hold a commit and nothing else but what git ignores."""
        self._git("checkout", "--quiet", "--detach", "--force", commit)
        self._git("clean", "-ffdq")

    def remove_tree(self, path: Path) -> None:
        """Remove a work tree with whatever is in it; its branch stays."""
        self._git("worktree", "remove", "--force", str(path))

    def lock_tree(self, reason: str) -> None:
        """Have git refuse to remove this work tree, and say why."""
        # A tree that somebody locked before keeps their reason, and is as safe.
        self._answer("worktree", "lock", "--reason", reason, str(self.root))

    def has_branch(self, branch: str) -> bool:
        return branch in {head.name for head in self._repo.heads}

    def delete_branch(self, branch: str) -> None:
        self._git("branch", "--quiet", "-D", branch)

    def commit(self, files: Mapping[str, Path | None], message: str) -> str:
        """Commit these files and return the commit; paths are relative to the root.

        Each is given with where its content lies, or None where it is gone: what was measured is
        what is committed, whatever the tree holds by now. Other edits and everything staged stay
        as they are, and no hook runs. HEAD is returned if it has these contents already.
        Raises CannotFinish for what git refuses, and while it waits for the user to finish
        something.
        """
        busy = self.operation_in_progress()
        if busy:
            raise CannotFinish(f"git cannot commit: {busy} is in progress")
        tracked = {path: files[path] for path in set(files) - self.ignored(files)}
        for left in reversed(range(_TRIES)):
            try:
                changes = self._index_changes(tracked)
                commit = self._commit_of_changes(changes, message) if changes else ""
                if changes:
                    self._git("update-index", *changes)
            except BadInput as error:
                # Another git is at work here, that of a second campaign perhaps; it takes moments.
                if not (left and _LOCKED.search(error.what)):
                    raise CannotFinish(f"git cannot commit: {error.what}") from None
                time.sleep(_PAUSE_SECONDS)
            else:
                return commit or self.head or ""
        raise AssertionError("the last try returns or raises")

    def _index_changes(self, files: Mapping[str, Path | None]) -> list[str]:
        """Store the contents and return the words with which `update-index` takes them up."""
        trusts_modes = self._answer("config", "--type=bool", "core.fileMode") != "false"
        words = []
        for path, source in files.items():
            if source is None:
                words += ["--force-remove", path]
                continue
            entry = ""
            if self.head and not trusts_modes:
                entry = self._git("ls-tree", "HEAD", "--", path)
            is_executable = trusts_modes and source.stat().st_mode & stat.S_IXUSR
            mode = "100755" if is_executable or entry.startswith("100755") else "100644"
            content = self._git("hash-object", "-w", f"--path={path}", "--", str(source.resolve()))
            words += ["--add", "--cacheinfo", f"{mode},{content},{path}"]
        return words

    def _commit_of_changes(self, changes: Sequence[str], message: str) -> str:
        """Make HEAD's tree with changes a commit on top of it; "" where that changes nothing."""
        head = self.head
        # An index of its own: nothing of what the user has staged gets in.
        with tempfile.TemporaryDirectory(prefix="pytest-kopt-") as directory:
            index = {"GIT_INDEX_FILE": str(Path(directory, "index"))}
            self._git("read-tree", head or "--empty", env=index)
            self._git("update-index", *changes, env=index)
            tree = self._git("write-tree", env=index)
        if head and tree == self._git("rev-parse", f"{head}^{{tree}}"):
            return ""
        parents = ["-p", head] if head else []
        identity = self._identity()
        commit = self._git("commit-tree", tree, *parents, "-m", message.strip(), env=identity)
        title = f"commit: {message.splitlines()[0]}"
        refs = ("update-ref", "-m", title, "HEAD", commit, head or "")
        self._git("-c", "core.hooksPath=/dev/null", *refs)
        return commit

    def relative(self, root: Path, path: str) -> str:
        """Return a path given relative to `root` as one relative to the work tree."""
        return (root / path).resolve().relative_to(self.root.resolve()).as_posix()

    @property
    def committer(self) -> str:
        """The author of commits as `NAME <EMAIL>`, and why it is ours if git has none."""
        name, email = self._answer("config", "user.name"), self._answer("config", "user.email")
        if email or "GIT_AUTHOR_EMAIL" in os.environ:
            name = os.environ.get("GIT_AUTHOR_NAME") or name or ""
            return f"{name} <{os.environ.get('GIT_AUTHOR_EMAIL') or email}>".strip()
        return f"{_NAME} <{_EMAIL}> (git has no user.email here)"

    def _identity(self) -> dict[str, str]:
        """Return the identity that git lacks here: author and committer each, if unset."""
        if self._answer("config", "user.email"):
            return {}
        names = dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), _NAME)
        mails = dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), _EMAIL)
        return {name: value for name, value in (names | mails).items() if name not in os.environ}
