"""Finding a function's twin in another version, by where it stands and not by its name alone."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_kopt.versions.affected_modules import home, universe
from pytest_kopt.versions.errors import NotLoadable, Unreached
from pytest_kopt.versions.loader import SecondVersion

_ADVICE = "write it as a plain function at module level"


def find(
    function: Callable[..., Any], changed: set[Path], root: Path, tree: Path
) -> tuple[Callable[..., Any], SecondVersion]:
    """Return the twin of a case's function in the tree of another version, and that version.

    Works for what stands in a module under a name (functions, jit functions, autotuners, compiled
    and cached functions), for methods of classes there (`Function.apply`), and for partials of
    them. Raises Unreached when the change does not concern the function, NotLoadable for lambdas,
    closures and instances, and for what cannot be imported a second time.
    """
    inner = _innermost(function)
    module, name = _place(inner)
    modules = universe(module, changed, root)
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
    module, _ = _place(_innermost(function))
    return {Path(str(sys.modules[module].__file__)).resolve()}


def check_arguments(arguments: Any, modules: Mapping[str, Path] | set[str]) -> None:
    """Raise NotLoadable when an argument is an instance of a class that exists twice."""
    for item in arguments:
        owner = type(item).__module__
        if owner in modules:
            raise NotLoadable(f"an argument is a {type(item).__name__} of {owner!r}")


def _innermost(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _rebuild(function: Any, twin: Any) -> Any:
    if not isinstance(function, functools.partial):
        return twin
    return functools.partial(_rebuild(function.func, twin), *function.args, **function.keywords)


def _place(function: Any) -> tuple[str, str]:
    """Return the module and the dotted name under which exactly this object can be had."""
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
    kind = "a lambda" if shown.endswith("<lambda>") else "defined inside a function or an instance"
    raise NotLoadable(f"{shown} is {kind}; {_ADVICE}")
