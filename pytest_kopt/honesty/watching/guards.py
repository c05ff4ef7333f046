"""Functions that the harness relies on, recorded before kernel code is imported and compared after.

Clocks, statistics, builtins, random sources, torch's functions and tensor methods, and this package
itself: whatever was replaced or had its code exchanged is named. What a library replaces in itself
(torch's compiler does) is no finding; what anybody else does is.
"""

from __future__ import annotations

import builtins
import functools
import gc
import importlib
import inspect
import random
import site
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from gc import get_referents
from operator import is_
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from pytest_kopt.honesty.finding import Finding

_OURS = "pytest_kopt"
#: Never replaced by anybody with good reason while a kernel is measured.
_STANDARD = (time, statistics, builtins, gc, random)
_TORCH = (
    *("torch", "torch.cuda", "torch.testing", "torch.random", "torch.nn.functional"),
    *("torch.linalg", "torch.special", "torch.autograd", "torch.Tensor", "torch._C.TensorBase"),
    *("torch.cuda.Event", "torch.cuda.Stream", "torch.cuda.CUDAGraph", "torch.Generator"),
    *("numpy", "numpy.random"),
)
#: Packages that may lie beside the folder of installed ones.
_ELSEWHERE = ("torch", "triton", "numpy", "pytest", "_pytest", "pluggy", "xdist", "execnet")
#: Names that libraries bind in `builtins` (gettext, interactive shells).
_LOOSE = {"_", "__build_class__", "__import__", "__debug__", "__doc__", "__name__", "__spec__"}
_PLAIN = (bool, int, float, str, bytes, type(None))
#: What a kernel's code calls, and binds once: what else it has may be its own to change.
_USED = (ModuleType, FunctionType, BuiltinFunctionType, type)
_CONTAINERS = (dict, list, set, tuple, frozenset)
#: Of these, something can be exchanged while they stay the same object.
_CHANGEABLE = (FunctionType, staticmethod, classmethod, property, functools.partial, *_CONTAINERS)


@dataclass(frozen=True, slots=True)
class _Mark:
    """One guarded value: the object, and what of it can be changed in place."""

    value: Any
    inner: object
    can_change: bool

    @property
    def is_plain_function(self) -> bool:
        """Whether code and defaults are all that can change of it."""
        return type(self.value) is FunctionType and not self.value.__kwdefaults__


@dataclass(slots=True)
class _Space:
    """A module or class and the marks of what is guarded in it.

    In a library's, `is_library`, a library may replace what it likes. What `functions` refer to is
    asked for at once: to read the code of each by its name is an audit event a time.
    """

    of: Any
    is_library: bool
    marks: dict[str, _Mark]
    _functions: list[Any] = field(init=False)
    _others: list[str] = field(init=False)
    _before: list[Any] = field(init=False)

    def __post_init__(self) -> None:
        plain = {key: mark.value for key, mark in self.marks.items() if mark.is_plain_function}
        self._functions = [*plain.values()]
        self._others = [k for k, mark in self.marks.items() if mark.can_change and k not in plain]
        self._before = self._now()

    def _now(self) -> list[Any]:
        """Return what is there, and then what its functions refer to."""
        return [*map(vars(self.of).get, self.marks), *get_referents(*self._functions)]

    def changes(self) -> Iterator[str]:
        """Yield the names of what is not as it was, and what hides something."""
        space, found = vars(self.of), self._now()
        is_quiet = len(found) == len(self._before) and all(map(is_, found, self._before))
        for key in self._others if is_quiet else self.marks:
            now = space.get(key)
            if _same(self.marks[key], now, deep=not self.is_library):
                continue
            if not (self.is_library and _made_by_a_library(now, key)):
                yield key
        yield from _shadows(self.of, self.marks)


@dataclass(slots=True)
class Guards:
    """The marks of everything guarded; see the module."""

    _spaces: dict[str, _Space] = field(default_factory=dict)

    @classmethod
    def take(cls, modules: Iterable[str] = ()) -> Guards:
        """Import `modules` of this package, which brings torch along, and remember everything.

        Without torch loaded only the standard library and this package are remembered.
        """
        for name in modules:
            importlib.import_module(name)
        guards = cls()
        for module in _STANDARD:
            guards._remember(module.__name__, module, callable)
        guards.extend()
        return guards

    def extend(self) -> None:
        """Remember what has been loaded since, as it is now."""
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == _OURS and name not in self._spaces:
                self._remember(name, module)
                for kind in vars(module).values():
                    if inspect.isclass(kind) and kind.__module__ == name:
                        self._remember(f"{name}.{kind.__qualname__}", kind)
        for name in _TORCH:
            space = _resolve(name)
            if space is not None and name not in self._spaces:
                self._remember(name, space, is_library=True)

    def guard(self, whose: str, modules: Iterable[ModuleType]) -> None:
        """Remember which modules, functions and classes the modules of a version have."""
        for module in modules:
            name = f"the {whose}'s {module.__name__}"
            self._remember(name, module, lambda value: isinstance(value, _USED))

    def findings(self) -> list[Finding]:
        """Return a finding when a guarded value is not what it was."""
        spaces = self._spaces.items()
        changed = sorted({f"{name}.{key}" for name, space in spaces for key in space.changes()})
        shown = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more" if changed[5:] else "")
        what = f"changed since before the kernel was imported: {shown}"
        advice = "a kernel must change nothing outside of itself"
        return [Finding("patched-function", what, advice=advice)] if changed else []

    def _remember(
        self,
        name: str,
        space: Any,
        wanted: Callable[[Any], bool] = lambda value: True,
        *,
        is_library: bool = False,
    ) -> None:
        marks = {
            key: _mark(value, deep=not is_library)
            for key, value in vars(space).items()
            if key not in _LOOSE and not key.startswith(("__", "_abc_")) and wanted(value)
        }
        self._spaces[name] = _Space(space, is_library, marks)


def _shadows(space: Any, marks: Mapping[str, _Mark]) -> Iterator[str]:
    """Yield the names that a class has got since and that hide what it inherits."""
    if not isinstance(space, type):
        return
    for key, value in list(vars(space).items()):
        if key in marks or key in _LOOSE or key.startswith(("__", "_abc_")):
            continue
        inherited = any(key in vars(base) for base in space.__mro__[1:])
        if inherited and not _made_by_a_library(value, key):
            yield key


def _mark(value: Any, *, deep: bool) -> _Mark:
    inner = _inner(value, deep=deep)
    own = deepcopy(inner) if inner is value else inner
    return _Mark(value, own, isinstance(value, _CHANGEABLE))


def _inner(value: Any, *, deep: bool) -> object:
    """Return what of a value can be exchanged while it stays the same object."""
    if type(value) is not FunctionType:
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        if isinstance(value, property):
            value = value.fget
        if isinstance(value, functools.partial):
            value = value.func
    if isinstance(value, FunctionType):
        named = value.__kwdefaults__
        return value.__code__, value.__defaults__, repr(named) if named else None
    if deep and isinstance(value, _CONTAINERS) and _is_plain(value):
        return value
    return None


def _is_plain(value: Any) -> bool:
    """Say whether a container holds only values that compare by content."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, _CONTAINERS):
        return all(map(_is_plain, value))
    return isinstance(value, _PLAIN)


def _same(mark: _Mark, now: Any, *, deep: bool) -> bool:
    if now is not mark.value:
        plain = isinstance(mark.value, _PLAIN) and type(now) is type(mark.value)
        return plain and bool(now == mark.value)
    return not mark.can_change or bool(_inner(now, deep=deep) == mark.inner)


def _made_by_a_library(value: Any, key: str) -> bool:
    """Say whether a replacement is the doing of an installed library, not of project code."""
    if value is None:
        return True
    if isinstance(value, ModuleType | type):
        return True
    seen: Any = inspect.unwrap(value) if callable(value) else value
    while isinstance(seen, functools.partial):
        seen = seen.func
    for candidate in (value, seen):
        code = getattr(candidate, "__code__", None)
        if isinstance(code, CodeType) and not is_library(code.co_filename):
            return False
        home = sys.modules.get(type(candidate).__module__)
        file = getattr(home, "__file__", None)
        if file is not None and not is_library(file):
            return False
    return getattr(value, "__name__", key) == key


@functools.cache
def _library_roots(loaded: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders of the interpreter's and the installed packages, and of loaded files."""
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    found |= {*site.getsitepackages(), site.getusersitepackages()}
    found |= {str(Path(file).parent) for file in loaded}
    return tuple(sorted(f"{Path(path).resolve()}/" for path in found))


@functools.cache
def is_library(filename: str) -> bool:
    """Say whether a source file belongs to the interpreter or to an installed package."""
    if filename.startswith("<frozen"):
        return True
    # The watch over writes asks before torch is imported, and while it is.
    files = (getattr(sys.modules.get(name), "__file__", None) for name in _ELSEWHERE)
    return str(Path(filename).resolve()).startswith(_library_roots(tuple(filter(None, files))))


def _resolve(name: str) -> Any:
    """Return a loaded module or class by its dotted name, None where there is none."""
    if name in sys.modules:
        return sys.modules[name]
    head, _, tail = name.rpartition(".")
    return getattr(_resolve(head), tail, None) if head else None
