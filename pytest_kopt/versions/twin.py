"""A second version of modules next to the loaded ones, and a function's counterpart in it.

While a module of the second version is imported, and whenever its code imports something later, the
names of its universe stand for the second version in sys.modules. Outside of that they stand for
the first. Sources are compiled afresh and never read from .pyc: a file of the same second and size
but other code must not be mistaken for the first version's. A function is found by its place, and
not only by its name.

Tests set attributes of the first version's modules only (`monkeypatch.setattr`). This file finds
them: it compares each module with what its import left.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from pytest_kopt.versions.affected_modules import (
    NotLoadable,
    Opened,
    SameVersion,
    home,
    resolved,
    universe,
)

_lock = threading.RLock()
#: The state of each module of the project when its import ended, by the module's name.
_left_by_import: dict[str, tuple[ModuleType, dict[str, Any]]] = {}
#: Attributes, as `module.name`, that a kernel's calls wrote: caches are not set by tests.
_written_by_calls: set[str] = set()
#: How deep the contents of an attribute are compared.
_DEPTH = 3
_CONSTANTS = (bool, int, float, complex, str, bytes, type(None))
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

    def take_settings(self, attributes: Iterable[str]) -> None:
        """Set in these modules what tests have set in the first version's, as `module.name`.

        Raises NotLoadable for what may lead to the first version, or may be shared by name.
        """
        for attribute in sorted(attributes):
            name, _, key = attribute.rpartition(".")
            if name not in self._paths:
                continue
            first, second = vars(sys.modules[name]), vars(self.module(name))
            in_both = key in first and key in second
            # What modules write into each other when they are imported is in both.
            if in_both and _named(first[key], _DEPTH) == _named(second[key], _DEPTH):
                continue
            if not (in_both and _is_constant(first[key])):
                raise NotLoadable(
                    f"{attribute} was set after its import, and in one process it would be set for "
                    "one version only"
                )
            second[key] = first[key]

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
    them. Raises SameVersion when the change does not concern the function, NotLoadable for lambdas,
    closures and instances, and for what cannot be imported a second time.
    """
    module, name = _place(function)
    modules = universe(module, changed, root, opened)
    if not modules:
        raise SameVersion("source")
    version = SecondVersion(modules, root, tree)
    twin: Any = version.module(module) if module in modules else sys.modules[module]
    for part in name.split("."):
        if not hasattr(twin, part):
            raise NotLoadable(f"the incumbent's {module!r} has no {name!r}")
        twin = getattr(twin, part)
    return _rebuild(function, twin), version


def own_file(function: Callable[..., Any]) -> set[Path]:
    """Return the file in which a function stands, for a comparison of a version with itself."""
    module, _ = _place(function)
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


def _place(function: Callable[..., Any]) -> tuple[str, str]:
    """Return module and dotted name of a case's function; NotLoadable if it has none."""
    while isinstance(function, functools.partial):
        function = function.func
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type):
        module, name = _place(owner)
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


def note_imports(root: Path, *loaders: type[Any]) -> None:
    """Keep from now on what these loaders leave in the modules below `root`."""
    for loader in loaders:
        loader.exec_module = _noting(loader.exec_module, f"{root}{os.sep}")


def _noting(execute: Callable[[Any, ModuleType], None], start: str) -> Callable[..., None]:
    def executed(self: Any, module: ModuleType) -> None:
        if is_inside := resolved(str(module.__file__)).startswith(start):
            # The contents of its own classes count in its state.
            _left_by_import[module.__name__] = module, {}
        execute(self, module)
        if is_inside:
            _left_by_import[module.__name__] = module, _state(module)

    return executed


@contextmanager
def kernel_calls() -> Iterator[set[str]]:
    """Yield the attributes, as `module.name`, that tests have set.

    Only kernels run inside of the block: an attribute that changes there is none of the tests'
    settings in later cases.
    """
    before = _changed_since_import()
    try:
        yield before - _written_by_calls
    finally:
        _written_by_calls.update(_changed_since_import() - before)


def _changed_since_import() -> set[str]:
    return {
        f"{name}.{attribute}"
        for name, (module, before) in _left_by_import.items()
        if sys.modules.get(name) is module
        for now in [_state(module)]
        for attribute in before.keys() | now.keys()
        if before.get(attribute) != now.get(attribute)
    }


def _state(module: ModuleType) -> dict[str, Any]:
    """Return a module's attributes, but for modules: an import adds those to their package."""
    return {
        name: _content(value, _DEPTH)
        for name, value in vars(module).items()
        if not (name.startswith("__") or isinstance(value, ModuleType))
    }


def _itself(value: object) -> tuple[int, object]:
    """Return what equals that of the same object only; an array would compare its elements.

    The object is kept as well: another one could come to have its id.
    """
    return id(value), value


def _content(value: Any, depth: int, leaf: Callable[[Any], Any] = _itself) -> Any:
    """Return a value such that it equals what it was before nobody set any of its contents."""
    if isinstance(value, _CONSTANTS):
        return value
    if depth and isinstance(value, dict):
        return {key: _content(part, depth - 1, leaf) for key, part in value.items()}
    if depth and isinstance(value, list | tuple):
        return [_content(part, depth - 1, leaf) for part in value]
    if isinstance(value, set | frozenset):
        return set(value)
    kind = value if isinstance(value, type) else type(value)
    is_of_project = kind.__module__ in _left_by_import or isinstance(value, FunctionType)
    if depth and is_of_project and hasattr(value, "__dict__"):
        parts = {n: _content(v, depth - 1, leaf) for n, v in vars(value).items() if n[:2] != "__"}
        return leaf(value), parts
    return leaf(value)


def _is_constant(value: Any) -> bool:
    parts = value if type(value) is tuple else (value,)
    return all(type(part) in _CONSTANTS for part in parts)


def _named(value: Any, depth: int) -> Any:
    """Return the same with the names of functions, classes and types in the place of objects."""

    def name(part: Any) -> tuple[str, str]:
        named = part if hasattr(part, "__qualname__") else type(part)
        return str(getattr(named, "__module__", "")), named.__qualname__

    return _content(value, depth, name)
