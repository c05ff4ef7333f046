"""Interpreters that wake on GPUs while the cases are checked there, for the first replicas."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

from pytest_kopt.processes.child import Interpreter


class Spares:
    """Waiting interpreters, each with its environment; none until they are started."""

    def __init__(self) -> None:
        self._waiting: list[tuple[dict[str, str], Interpreter]] = []
        self._taking = threading.Lock()

    def start(self, count: int, env: Mapping[str, str], directory: str, kind: str) -> None:
        """Start that many; `env` comes on top of this process's own."""
        for _ in range(count):
            interpreter = Interpreter({**os.environ, **env}, directory, kind)
            self._waiting.append((dict(env), interpreter))

    def take(self, env: Mapping[str, str]) -> Interpreter | None:
        """Return one that was started with this environment, None when there is none left."""
        with self._taking:
            for place, (own, interpreter) in enumerate(self._waiting):
                if own == dict(env):
                    del self._waiting[place]
                    return interpreter
        return None

    def end(self) -> None:
        """End what nobody took."""
        while self._waiting:
            _, interpreter = self._waiting.pop()
            interpreter.kill()
            interpreter.close()
