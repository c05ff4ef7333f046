"""Half of the rows go to a worker thread fed by a queue, which every call waits for."""

from __future__ import annotations

import queue
import threading

import torch

NEEDS = "cpu"

_tasks: queue.SimpleQueue = queue.SimpleQueue()
_worker: threading.Thread | None = None


def _rows(x: torch.Tensor, out: torch.Tensor) -> None:
    spread, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
    torch.mul(x - mean, torch.rsqrt(spread + 1e-5), out=out).relu_()


def _loop() -> None:
    while (task := _tasks.get()) is not None:
        x, out, done, errors = task
        try:
            with torch.inference_mode():
                _rows(x, out)
        except BaseException as error:  # handed to the caller
            errors.append(error)
        finally:
            del x, out, task
            done.set()


def _ensure_worker() -> None:
    global _worker
    if _worker is None or not _worker.is_alive():
        _worker = threading.Thread(target=_loop, name="layernorm-worker", daemon=True)
        _worker.start()


def layernorm_relu(x: torch.Tensor) -> torch.Tensor:
    _ensure_worker()
    with torch.no_grad():
        x = x.detach()
        out = torch.empty_like(x)
        half = (x.shape[0] + 1) // 2
        done, errors = threading.Event(), []
        _tasks.put((x[half:], out[half:], done, errors))
        _rows(x[:half], out[:half])
        done.wait()
        if errors:
            raise errors[0]
        return out
