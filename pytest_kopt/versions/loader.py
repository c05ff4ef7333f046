"""Importing a second version of modules under their own names, beside the loaded ones.

While a module of the second version is imported, and whenever its code imports something later, the
names of its universe stand for the second version in sys.modules; outside of that they stand for
the first. Sources are compiled afresh and never read from .pyc: a file of the same second and size
but other code must not be mistaken for the first version's.
"""

from __future__ import annotations

import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from pytest_kopt.versions.load_errors import NotLoadable

_lock = threading.RLock()


class _SourceLoader(importlib.machinery.SourceFileLoader):
    """Compiles the source on disk and gives the module its own `__import__`."""

    def __init__(self, name: str, path: str, version: SecondVersion) -> None:
        super().__init__(name, path)
        self._version = version

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__builtins__"] = {
            **vars(builtins),
            "__import__": self._version.import_hook,
        }
        super().exec_module(module)


class SecondVersion(importlib.abc.MetaPathFinder):
    """The modules of another version of the project.

    `modules` maps the names of the universe to the files of the first version below `root`; those
    of the second lie at the same places below `tree`.
    """

    def __init__(self, modules: Mapping[str, Path], root: Path, tree: Path) -> None:
        self._paths = {name: tree / path.relative_to(root) for name, path in modules.items()}
        self.first_files = {
            str(getattr(sys.modules[name], "__file__", path)) for name, path in modules.items()
        }
        self._loaded: dict[str, ModuleType] = {}
        self._is_swapped = False

    @property
    def names(self) -> set[str]:
        """The modules that exist twice."""
        return set(self._paths)

    @property
    def modules(self) -> list[ModuleType]:
        """The second version's modules that are loaded by now."""
        return [*self._loaded.values()]

    @property
    def files(self) -> set[str]:
        """The second version's files, as they stand in its code objects."""
        return {str(path) for path in self._paths.values()}

    def module(self, name: str) -> ModuleType:
        """Return a module of the second version, imported at first use; or NotLoadable."""
        with self._swapped():
            try:
                return importlib.import_module(name)
            except NotLoadable:
                raise
            except Exception as error:
                raise NotLoadable(
                    f"the incumbent's {name!r} does not import: {type(error).__name__}: {error}"
                ) from error

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._paths:
            return None
        file = self._paths[fullname]
        if not file.is_file():
            raise NotLoadable(f"the incumbent has no {file.name!r} for module {fullname!r}")
        return importlib.util.spec_from_file_location(
            fullname,
            file,
            loader=_SourceLoader(fullname, str(file), self),
            submodule_search_locations=[str(file.parent)] if file.name == "__init__.py" else None,
        )

    def import_hook(self, name: str, *args: Any, **kwargs: Any) -> ModuleType:
        """Stand in for `__import__` in the second version's modules."""
        with self._swapped():
            return builtins.__import__(name, *args, **kwargs)

    @contextmanager
    def _swapped(self) -> Iterator[None]:
        with _lock:
            if self._is_swapped:
                # An import within an import: what is half imported has to be found.
                yield
                return
            self._is_swapped = True
            first = {name: sys.modules.pop(name) for name in self._paths if name in sys.modules}
            sys.modules.update(self._loaded)
            sys.meta_path.insert(0, self)
            attributes = self._take_from_packages()
            try:
                yield
            finally:
                sys.meta_path.remove(self)
                second = {n: sys.modules.pop(n) for n in self._paths if n in sys.modules}
                self._loaded.update(second)
                sys.modules.update(first)
                for package, child, value in attributes:
                    setattr(package, child, value)
                self._is_swapped = False

    def _take_from_packages(self) -> list[tuple[ModuleType, str, ModuleType]]:
        """Take the first version's modules out of packages that both versions share.

        A namespace package has no file and exists once; `from package import module` would find the
        first version there.
        """
        attributes = []
        for name in self._paths:
            above, _, child = name.rpartition(".")
            package = sys.modules.get(above)
            value = vars(package).get(child) if package and above not in self._paths else None
            if package is not None and isinstance(value, ModuleType):
                attributes.append((package, child, value))
                delattr(package, child)
        return attributes
