"""Interpreters that wake on a GPU while the cases are checked there, for the first replicas."""

from __future__ import annotations

import os
from collections.abc import Mapping

from pytest_kopt.session.child import Interpreter


class Spares:
    """Waiting interpreters of one environment; empty until they are started."""

    def __init__(self) -> None:
        self._env: dict[str, str] = {}
        self._waiting: list[Interpreter] = []

    def start(self, count: int, env: Mapping[str, str], directory: str, kind: str) -> None:
        """Start that many; `env` comes on top of this process's own."""
        self._env = dict(env)
        self._waiting += [Interpreter({**os.environ, **env}, directory, kind) for _ in range(count)]

    def take(self, env: Mapping[str, str]) -> Interpreter | None:
        """Return one that was started with this environment, None when there is none left."""
        return self._waiting.pop() if self._waiting and self._env == dict(env) else None

    def end(self) -> None:
        """End what nobody took."""
        while self._waiting:
            interpreter = self._waiting.pop()
            interpreter.kill()
            interpreter.close()
