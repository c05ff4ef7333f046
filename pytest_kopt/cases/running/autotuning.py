"""The configurations that autotuned kernels run with: chosen once a session for each version."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import zip_longest
from typing import Any

from pytest_kopt.cases.order import Choices


class _Tuning:
    """The configurations that this process runs autotuned kernels with.

    Triton times every configuration at the first call for each key. In a session one process does
    that for each version; the others take its choices. Versions with the same kernel (source, what
    that takes from its module, configurations) have one choice: two would differ by chance, in all
    processes alike.
    """

    def __init__(self) -> None:
        #: The choices of other processes, by kernel.
        self.preset: Mapping[str, Mapping[str, str]] = {}
        #: Whether no kernel of the preset ones is tuned for a further key.
        self.is_fixed = False
        #: Whether no kernel at all is tuned: shapes near the declared ones are tried.
        self.is_near = False
        #: By kernel and key, the autotuner that timed configurations here, and their times.
        self._timed: dict[tuple[str, str], tuple[object, dict[str, Any]]] = {}

    @property
    def choices(self) -> Choices:
        """The choices that were made here."""
        choices: Choices = {}
        for (kernel, key), (_, times) in self._timed.items():
            choices.setdefault(kernel, {})[key] = _fastest(times)
        return choices

    def choice(self, tuner: Any, kernel: str, key: str) -> str | None:
        """Return the configuration to run with; None: they have to be timed here."""
        timed_by, times = self._timed.get((kernel, key), (tuner, {}))
        preset = self.preset.get(kernel, {})
        if key in preset:
            return preset[key]
        if timed_by is not tuner:
            return _fastest(times)
        if not (self.is_near or (self.is_fixed and preset)):
            return None
        choices = {**self.choices.get(kernel, {}), **preset}
        nearest = min(choices, key=functools.partial(_distance, key), default=None)
        return str(tuner.configs[0]) if nearest is None else choices[nearest]

    def bench(self, timed: Callable[..., Any], tuner: Any, *args: Any, **options: Any) -> Any:
        """Stand in for `Autotuner._bench`: the configuration of the shortest time is run."""
        config = str(options["config"])
        arguments = {**tuner.nargs, **options}
        # As Triton makes it; arguments that are no JSON, such as dtypes, have their names.
        key = [arguments[name] for name in tuner.keys if name in arguments]
        named = (arguments[name] for name in tuner.arg_names if name in arguments)
        key += [str(value.dtype) for value in named if hasattr(value, "dtype")]
        kernel, text = _kernel_name(tuner), json.dumps(key, default=str)
        if (choice := self.choice(tuner, kernel, text)) is not None:
            return [float(config != choice)] * 3
        time = timed(tuner, *args, **options)
        _, times = self._timed.setdefault((kernel, text), (tuner, {}))
        times[config] = time
        return time

    def from_disk(self, look_up: Callable[..., Any], tuner: Any, *args: Any) -> Any:
        """Stand in for `Autotuner.check_disk_cache`, which writes times that it did not find."""
        key, configs, time_all = args
        if not (self.preset or self.is_near):
            return look_up(tuner, key, configs, time_all)

        def missing() -> None:
            raise KeyError(key)

        # What `bench` returns for a choice is no time.
        with suppress(KeyError):
            return look_up(tuner, key, configs, missing)
        time_all()
        return False


_TUNING = _Tuning()


def preset_choices(choices: Mapping[str, Mapping[str, str]], *, is_fixed: bool) -> None:
    """Have autotuned kernels run with these choices.

    With `is_fixed` other keys of their kernels take the choice of the nearest key.
    """
    _TUNING.preset, _TUNING.is_fixed = choices, is_fixed
    # The kernels of a case are imported before it is called.
    tuner: Any = getattr(sys.modules.get("triton.runtime.autotuner"), "Autotuner", None)
    for name, stand_in in (("_bench", _TUNING.bench), ("check_disk_cache", _TUNING.from_disk)):
        # Triton lacks the second before 3.4.
        original = getattr(tuner, name, None)
        if original is not None and not hasattr(original, "__wrapped__"):
            setattr(tuner, name, _in_place_of(original, stand_in))


def _in_place_of(original: Callable[..., Any], stand_in: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def method(tuner: object, *args: Any, **options: Any) -> Any:
        return stand_in(original, tuner, *args, **options)

    return method


def _fastest(times: Mapping[str, Any]) -> str:
    return min(times, key=times.__getitem__)


def _distance(key: str, other: str) -> tuple[float, float]:
    """Return how far two keys are apart: in what is no size, then in sizes."""
    unequal, ratio = 0.0, 0.0
    for one, two in zip_longest(*map(_parts, (key, other))):
        if _is_size(one) and _is_size(two):
            ratio += 0.0 if one == two else abs(math.log(abs(one) + 1) - math.log(abs(two) + 1))
        elif one != two:
            unequal += 1
    return unequal, ratio


def _is_size(part: object) -> bool:
    return isinstance(part, int | float) and not isinstance(part, bool)


def _parts(key: str) -> list[Any]:
    # Kernel code may have handed over anything as a key.
    with suppress(ValueError):
        if isinstance(parts := json.loads(key), list):
            return parts
    return [key]


def _kernel_name(tuner: Any) -> str:
    """Return the name of an autotuned kernel, with a digest of what makes it another one."""
    text = [_source(tuner.base_fn), *map(str, tuner.configs), *tuner.keys]
    digest = hashlib.sha256("\n".join(text).encode()).hexdigest()
    return f"{tuner.base_fn.__name__}@{digest[:8]}"


@functools.cache
def _source(kernel: Callable[..., Any]) -> str:
    """Return the source of a kernel, with those of the kernels and constants that it names."""
    sources: dict[object, str] = {}
    waiting = [inspect.unwrap(kernel)]
    while waiting:
        function = waiting.pop()
        try:
            sources[function] = inspect.getsource(function)
        except (OSError, TypeError):
            sources[function] = function.__code__.co_code.hex()
        names = function.__code__.co_names
        values = [function.__globals__[name] for name in names if name in function.__globals__]
        modules = [value for value in values if inspect.ismodule(value)]
        values += [
            vars(module)[name] for module in modules for name in names if name in vars(module)
        ]
        for value in values:
            called = getattr(value, "fn", None)
            if inspect.isfunction(called) and called not in sources:
                waiting.append(called)
            elif isinstance(value, str | int | float) or type(value).__name__ == "constexpr":
                sources[function] += f"\n{value}"
    return "\n".join(sources.values())


def choices_made() -> Choices:
    """Return the choices of autotuned kernels that this process has made so far."""
    return _TUNING.choices


@contextmanager
def nearest_choices() -> Iterator[None]:
    """Have autotuned kernels run near the declared shapes with the choices that are there."""
    _TUNING.is_near = True
    try:
        yield
    finally:
        _TUNING.is_near = False
