"""A second version of modules next to the loaded ones, and a function's counterpart in it.

While a module of the second version is imported, and whenever its code imports something later, the
names of its universe stand for the second version in sys.modules. Outside of that they stand for
the first. Sources are compiled afresh and never read from .pyc: a file of the same second and size
but other code must not be mistaken for the first version's. A function is found by its place, and
not only by its name.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from pytest_kopt.versions.affected_modules import NotLoadable, Opened, Unreached, home, universe

_lock = threading.RLock()
_ADVICE = "one process asks for a plain function at module level"


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


def find(
    function: Callable[..., Any],
    changed: set[Path],
    root: Path,
    tree: Path,
    opened: Opened | None = None,
) -> tuple[Callable[..., Any], SecondVersion]:
    """Return the twin of a case's function in the tree of another version, and that version.

    Works for what stands in a module under a name (functions, jit functions, autotuners, compiled
    and cached functions), for methods of classes there (`Function.apply`), and for partials of
    them. Raises Unreached when the change does not concern the function, NotLoadable for lambdas,
    closures and instances, and for what cannot be imported a second time.
    """
    module, name = place(function)
    modules = universe(module, changed, root, opened)
    if not modules:
        raise Unreached(f"the change does not reach {module!r} through its imports")
    version = SecondVersion(modules, root, tree)
    twin: Any = version.module(module) if module in modules else sys.modules[module]
    for part in name.split("."):
        if not hasattr(twin, part):
            raise NotLoadable(f"the incumbent's {module!r} has no {name!r}")
        twin = getattr(twin, part)
    return _rebuild(function, twin), version


def own_file(function: Callable[..., Any]) -> set[Path]:
    """Return the file in which a function stands, for a comparison of a version with itself."""
    module, _ = place(function)
    return {Path(str(sys.modules[module].__file__)).resolve()}


def translating(
    function: Callable[..., Any],
    arguments: Iterable[Any],
    names: set[str],
    version: SecondVersion | None = None,
) -> Callable[..., Any]:
    """Return what calls a version's function with such `arguments`, as its modules know them.

    Instances of classes of the modules `names`, which exist twice, are translated. Every version
    of a comparison is wrapped alike (`version` None: the classes are the caller's), so that the
    look-up costs all of them the same. Raises NotLoadable for arguments that cannot be.
    """
    if not any(type(argument).__module__ in names for argument in arguments):
        return function
    pairs: dict[int, tuple[Any, Any]] = {}

    def own(argument: Any) -> Any:
        if type(argument).__module__ not in names:
            return argument
        pair = pairs.get(id(argument))
        if pair is None:
            # The argument is kept as well: another one could come to have its id.
            pair = pairs[id(argument)] = (argument, _translated(argument, names, version))
        return pair[1]

    def call(*positional: Any, **keywords: Any) -> Any:
        return function(*map(own, positional), **{name: own(keywords[name]) for name in keywords})

    for argument in arguments:
        _translated(argument, names, version)
    return call


def _translated(argument: Any, names: set[str], version: SecondVersion | None) -> Any:
    """Return an enum's member, a dataclass or a named tuple as an instance of its twin class."""
    kind = type(argument)
    if kind.__module__ not in names or version is None:
        return argument
    twin: Any = version.module(kind.__module__)
    for part in kind.__qualname__.split("."):
        twin = getattr(twin, part, None)
    if isinstance(argument, Enum) and argument.name in getattr(twin, "__members__", {}):
        return twin[argument.name]
    field_names = _fields(argument)
    if not field_names or field_names != _fields(twin):
        raise NotLoadable(f"an argument is a {kind.__name__} of {kind.__module__!r}")
    values = {name: _translated(getattr(argument, name), names, version) for name in field_names}
    if isinstance(argument, tuple):
        return twin(**values)
    made: Any = twin.__new__(twin)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _fields(argument: Any) -> tuple[str, ...]:
    """Return the names of a dataclass's or named tuple's fields, or of their class's."""
    if is_dataclass(argument):
        return tuple(field.name for field in fields(argument))
    return tuple(getattr(argument, "_fields", ()))


def place(function: Callable[..., Any]) -> tuple[str, str]:
    """Return module and dotted name of a case's function; NotLoadable if it has none."""
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type):
        module, name = place(owner)
        return module, f"{name}.{function.__name__}"
    module_of = home(function)
    candidates = [module_of] if module_of else []
    candidates += [m for m in list(sys.modules.values()) if m is not None and m is not module_of]
    for module_ in candidates:
        for name, value in list(getattr(module_, "__dict__", {}).items()):
            if value is function:
                return module_.__name__, name
    shown = getattr(function, "__qualname__", repr(function))
    inside = "defined inside a function" if "<locals>" in shown else "an instance"
    kind = "a lambda" if shown.endswith("<lambda>") else inside
    raise NotLoadable(f"{shown} is {kind}; {_ADVICE}")


def _rebuild(function: Any, twin: Any) -> Any:
    if not isinstance(function, functools.partial):
        return twin
    return functools.partial(_rebuild(function.func, twin), *function.args, **function.keywords)
