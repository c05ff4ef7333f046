"""Finds a function's counterpart in another version, by its place and not only by its name."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pytest_kopt.versions.affected_modules import Opened, home, universe
from pytest_kopt.versions.load_errors import NotLoadable, Unreached
from pytest_kopt.versions.loader import SecondVersion

_ADVICE = "one process asks for a plain function at module level"


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
    given: Iterable[Any],
    names: set[str],
    version: SecondVersion | None = None,
) -> Callable[..., Any]:
    """Return what calls a version's function with arguments like `given`, as its modules know them.

    Instances of classes of the modules `names`, which exist twice, are translated. Every version
    of a comparison is wrapped alike (`version` None: the classes are the caller's), so that the
    look-up costs all of them the same. Raises NotLoadable for arguments that cannot be.
    """
    if not any(type(item).__module__ in names for item in given):
        return function
    made: dict[int, tuple[Any, Any]] = {}

    def own(item: Any) -> Any:
        if type(item).__module__ not in names:
            return item
        kept = made.get(id(item))
        if kept is None:
            # The item is kept as well: another one could come to have its id.
            kept = made[id(item)] = (item, _translated(item, names, version))
        return kept[1]

    def call(*given: Any, **named: Any) -> Any:
        return function(*map(own, given), **{name: own(item) for name, item in named.items()})

    for item in given:
        _translated(item, names, version)
    return call


def _translated(item: Any, names: set[str], version: SecondVersion | None) -> Any:
    """Return an enum's member, a dataclass or a named tuple as an instance of its twin class."""
    kind = type(item)
    if kind.__module__ not in names or version is None:
        return item
    twin: Any = version.module(kind.__module__)
    for part in kind.__qualname__.split("."):
        twin = getattr(twin, part, None)
    if isinstance(item, Enum) and item.name in getattr(twin, "__members__", {}):
        return twin[item.name]
    named = _fields(item)
    if not named or named != _fields(twin):
        raise NotLoadable(f"an argument is a {kind.__name__} of {kind.__module__!r}")
    values = {name: _translated(getattr(item, name), names, version) for name in named}
    if isinstance(item, tuple):
        return twin(**values)
    made: Any = twin.__new__(twin)
    for name, value in values.items():
        object.__setattr__(made, name, value)
    return made


def _fields(item: Any) -> tuple[str, ...]:
    """Return the names of a dataclass's or named tuple's fields, or of their class's."""
    if is_dataclass(item):
        return tuple(field.name for field in fields(item))
    return tuple(getattr(item, "_fields", ()))


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
