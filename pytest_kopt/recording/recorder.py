"""Records with which arguments a function is called, how often, and how long it takes.

A Python program runs in an interpreter where a function of it is recorded.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import runpy
import subprocess
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from statistics import median_low
from time import perf_counter
from typing import Any

from pytest_kopt.errors import BadInput, of_extra
from pytest_kopt.exit_codes import ExitCode

#: The format of record.json.
VERSION = 2
RECORD, CONTENTS = "record.json", "contents.safetensors"
#: Dtypes, without `torch.`, of the tensors that can be drawn again.
DTYPES = (
    *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)
#: Of a larger tensor statistics are kept, and no contents.
_MOST_BYTES = 64 << 20
_RUN = "from pytest_kopt.recording.recorder import main; main()"


def _bound(
    function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[list[Any], list[str] | None]:
    """Return the arguments in order, with their names where all can be given by name."""
    try:
        bound = inspect.signature(function).bind(*arguments, **named)
    except (TypeError, ValueError):
        return [*arguments, *named.values()], None
    kinds = {bound.signature.parameters[name].kind for name in bound.arguments}
    if kinds <= {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}:
        return [*bound.arguments.values()], [*bound.arguments]
    return [*arguments, *named.values()], None


def _described(value: Any, key: str, tensors: dict[str, Any] | None) -> dict[str, Any]:
    """Return an argument as record.json has it; `tensors` get the contents of one by `key`."""
    import torch

    plain = _plain(value)
    if not isinstance(value, torch.Tensor) or "unknown" in plain:
        return plain
    plain["statistics"] = _statistics(value)
    if tensors is not None and value.numel() * value.element_size() <= _MOST_BYTES:
        tensors[key] = value.detach().cpu().contiguous().clone()
        plain["contents"] = key
    return plain


def _plain(value: Any) -> dict[str, Any]:
    """Return what of an argument tells signatures apart, as record.json has it."""
    import torch

    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        if dtype not in DTYPES or value.layout != torch.strided:
            return {"unknown": f"{dtype} tensor, {value.layout}, shape {[*value.shape]}"}
        return {
            "dtype": dtype,
            "shape": [*value.shape],
            "stride": [*value.stride()],
            "requires_grad": value.requires_grad and torch.is_grad_enabled(),
        }
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    return {"unknown": type(value).__qualname__}


def _statistics(tensor: Any) -> dict[str, float]:
    """Return mean, standard deviation, least and largest of the finite elements."""
    import torch

    values = tensor.detach().double().reshape(-1)
    values = values[torch.isfinite(values)]
    if not values.numel():
        return {"mean": 0.0, "std": 0.0, "min": 0.0, "max": 0.0}
    return {
        "mean": float(values.mean()),
        "std": float(values.std(correction=0)),
        "min": float(values.min()),
        "max": float(values.max()),
    }


def safetensors() -> Any:
    """Return the module that writes and reads contents; BadInput where it is not installed."""
    return of_extra("record", "safetensors.torch", "safetensors")


@contextmanager
def record(target: str, into: str | Path, *, contents: bool = False) -> Iterator[None]:
    """Record the calls of a function, `pkg.mod:function`, while the block runs.

    The folder `into` gets record.json, with an entry for each distinct signature (shapes, dtypes,
    strides, scalars, gradients asked for). An entry has the arguments of its first call with
    statistics of tensors, how often it was called, and how long all calls and the median one took.
    With `contents` also contents.safetensors, with tensors of up to 64 MiB. Modules that hold the
    function already get the recording one too. BadInput where there is no such function, the folder
    holds a record, or what writes contents is not installed.
    """
    module_name, _, name = target.partition(":")
    folder = Path(into)
    if _holds_calls(folder):
        raise BadInput("holds a record already", where=str(folder), fix="name another folder")
    if contents:
        # Missing only when the program has run, it would cost that run.
        _ = safetensors()
    try:
        function = getattr(import_module(module_name), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInput(f"{target!r}: {error}", legal="pkg.mod:function") from None
    signatures: dict[str, dict[str, Any]] = {}
    times: dict[str, array[float]] = {}
    tensors: dict[str, Any] = {}

    @functools.wraps(function)
    def recording(*arguments: Any, **named: Any) -> Any:
        import torch

        values, names = _bound(function, arguments, named)
        key = repr((names, [_plain(value) for value in values]))
        if key not in signatures:
            place, kept = len(signatures), tensors if contents else None
            described = [_described(x, f"{place}.{i}", kept) for i, x in enumerate(values)]
            signatures[key], times[key] = {"arguments": described, "names": names}, array("d")
        on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in values)
        if on_gpu:
            torch.cuda.synchronize()
        began = perf_counter()
        result = function(*arguments, **named)
        if on_gpu:
            torch.cuda.synchronize()
        times[key].append(perf_counter() - began)
        return result

    _replace(function, recording)
    began = perf_counter()
    try:
        yield
    finally:
        document = {
            "schema_version": VERSION,
            "function": target,
            "seconds": perf_counter() - began,
            # One whose calls all raised an error has none.
            "signatures": [signatures[key] | _timed(times[key]) for key in times if times[key]],
        }
        # Modules that were imported meanwhile hold it as well.
        _replace(recording, function)
        folder.mkdir(parents=True, exist_ok=True)
        if tensors:
            safetensors().save_file(tensors, folder / CONTENTS)
        (folder / RECORD).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _timed(seconds: array[float]) -> dict[str, float]:
    """Return how often a signature was called, and how long all calls and the median one took."""
    return {
        "calls": len(seconds),
        "seconds": sum(seconds),
        "median_seconds": median_low(seconds),
    }


def _holds_calls(folder: Path) -> bool:
    """Say whether a folder has a record; one of a program that never called may be written over."""
    file = folder / RECORD
    try:
        return file.exists() and bool(json.loads(file.read_text(encoding="utf-8"))["signatures"])
    except (ValueError, KeyError):
        # Somebody else's file of that name.
        return True


def _replace(function: Any, other: Any) -> None:
    """Have every module that holds a function hold another one in its place."""
    for module in [*sys.modules.values()]:
        names = [*vars(module).items()] if hasattr(module, "__dict__") else ()
        for name, value in names:
            if value is function:
                setattr(module, name, other)


def run_recorded(words: Sequence[str], target: str, into: Path, *, contents: bool) -> int:
    """Run `python FILE …` or `python -m MODULE …`, as `words` have it, and write the record.

    It runs in this process's own Python, and prints where we do. Returns its exit code. BadInput
    for any other command.
    """
    program, *rest = words or ("",)
    is_python = Path(program).name.startswith("python")
    if not is_python or not rest or (rest[0].startswith("-") and (rest[0] != "-m" or not rest[1:])):
        raise BadInput(
            f"{' '.join(words)!r} is no Python program",
            where="kopt record",
            legal="kopt record … -- python train.py, or -- python -m train",
        )
    orders = json.dumps({"target": target, "into": str(into), "contents": contents})
    return subprocess.call([sys.executable, "-c", _RUN, orders, *rest])


def main() -> None:
    """Run a program's words after the orders; what it raises is raised, SystemExit too."""
    orders, words = json.loads(sys.argv[1]), sys.argv[2:]
    is_module = words[0] == "-m"
    sys.argv = words[1:] if is_module else words
    sys.path[0] = os.getcwd() if is_module else str(Path(words[0]).resolve().parent)
    try:
        with record(orders["target"], orders["into"], contents=orders["contents"]):
            if is_module:
                runpy.run_module(words[1], run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(words[0], run_name="__main__")
    except BadInput as error:
        print(f"ERROR: {error}", file=sys.stderr)  # noqa: T201 - a command's own message
        sys.exit(ExitCode.USAGE)
