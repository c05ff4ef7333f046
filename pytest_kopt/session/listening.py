"""Starts a process's audit hook before the first file that could import a kernel."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

import pytest

from pytest_kopt.options.declare import SERVE
from pytest_kopt.processes.bytecode import kept_bytecode

if TYPE_CHECKING:
    from pytest_kopt.honesty.audit_hook import AuditHook

_HOOK: pytest.StashKey[AuditHook] = pytest.StashKey()
#: Everything that measures, torch included: imported before kernel code, from what is installed.
_MEASURING = (
    *("pytest_kopt.cases.running.runner", "pytest_kopt.cases.running.timed_versions"),
    "pytest_kopt.cases.fixture",
)


def audit_hook_of(config: pytest.Config) -> AuditHook:
    """Return the audit hook of this process, installed now unless it is; imports torch."""
    if _HOOK not in config.stash:
        serve = config.pluginmanager.get_plugin(SERVE)
        with kept_bytecode():
            from pytest_kopt.honesty.audit_hook import AuditHook
            from pytest_kopt.processes.isolation import compilers_caches

            arms = serve.orders.arms if serve is not None else None
            config.stash[_HOOK] = hook = AuditHook(
                config.rootpath,
                getattr(serve, "bounds", None),
                arms.changed_data() if arms is not None else (),
                # As the environment names them before kernel code can.
                compilers_caches(),
            )
            hook.install()
            for name in _MEASURING:
                importlib.import_module(name)
    return config.stash[_HOOK]
