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
