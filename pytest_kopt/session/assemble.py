"""Which plugins this process needs: worker, controller, or both."""

from __future__ import annotations

import atexit
import gc
from typing import TYPE_CHECKING

import pytest

from pytest_kopt.cases.order import WorkerOrders, derive, fresh_session_seed
from pytest_kopt.devices.vendor import choose
from pytest_kopt.errors import BadInput
from pytest_kopt.options.declare import SERVE, WORKERINPUT
from pytest_kopt.process_tree import end_with_parent
from pytest_kopt.processes.child import HIDDEN
from pytest_kopt.session.worker import WORKER, Worker

if TYPE_CHECKING:
    from pytest_kopt.cases.protocol import Client
    from pytest_kopt.options.settings import Settings
    from pytest_kopt.session.controller import Controller, Trial

_CONTROLLER = "kopt-controller"


def controller_of(config: pytest.Config) -> Controller | None:
    controller: Controller | None = config.pluginmanager.get_plugin(_CONTROLLER)
    return controller


def assemble(config: pytest.Config) -> None:
    """Register the plugins of a process that runs cases, has them run, or both; or UsageError."""
    manager = config.pluginmanager
    serve = manager.get_plugin(SERVE)
    from_session = getattr(config, "workerinput", {})
    if serve is not None:
        _register(config, serve.orders, serve)
        return
    if WORKERINPUT in from_session:
        # A worker of xdist in a plain run.
        end_with_parent()
        _register(config, WorkerOrders.from_json(from_session[WORKERINPUT]))
        return
    from pytest_kopt.options.settings import Settings
    from pytest_kopt.session.controller import told

    consequence = "nothing was measured; what was decided is carried out by the next session"
    try:
        with told(consequence):
            _assemble_main(config, Settings.from_config(config))
    except pytest.exit.Exception:
        # Before a session begins pytest writes why it ends, and its reporter would write it again.
        if manager.has_plugin("terminalreporter"):
            manager.unregister(name="terminalreporter")
        raise


def _register(config: pytest.Config, orders: WorkerOrders, client: Client | None = None) -> None:
    """Have this process run cases; markers of plugins that are set aside here stay known."""
    for marker in orders.markers:
        config.addinivalue_line("markers", marker)
    config.pluginmanager.register(Worker(config, orders, client), WORKER)


def _hide_records(config: pytest.Config) -> None:
    """Have processes that run kernel code for a verdict be confined, unless that is off."""
    from pytest_kopt.campaign.layout import kept_records
    from pytest_kopt.options.settings import choice, workspace_of

    if choice(config, "kopt_isolation") == "on":
        config.stash[HIDDEN] = tuple(kept_records(workspace_of(config)))


def _leave() -> None:
    """Spare the interpreter a search for garbage in all that is loaded, of which it makes three."""
    gc.collect()
    gc.freeze()


def _assemble_main(config: pytest.Config, settings: Settings) -> None:
    from pytest_kopt.decide.inference import load_student
    from pytest_kopt.processes.sites import hosts_of
    from pytest_kopt.session.controller import Controller

    manager = config.pluginmanager
    if settings.active:
        atexit.register(_leave)
    seed = settings.seed if settings.seed is not None else fresh_session_seed()
    device = choose(settings.device)
    if settings.sanitize and (device != "cuda" or hosts_of(config)):
        raise BadInput(
            f"needs an NVIDIA GPU and one case at a time; the device is {device}",
            where="--kopt-sanitize",
            fix="--kopt-device cuda on a machine with a GPU, without -n",
        )
    writes_one_csv = settings.summary_csv is not None and not settings.csv_is_folder
    orders = WorkerOrders(
        device,
        settings.engine,
        seed,
        settings.timeout,
        settings.suite,
        has_one_schema=writes_one_csv or bool(settings.round),
        only_checks=not settings.times,
        times_same=settings.measure_same,
        repeats=settings.repeats,
        iterations=settings.iterations,
        markers=tuple(config.getini("markers")),
        setup_seed=derive(seed, "", "setup"),
    )
    if hasattr(config, "workerinput"):
        # A worker of xdist in a run that asked for nothing: the main process takes its rows.
        manager.register(Worker(config, orders), WORKER)
        return
    trial = None if config.option.collectonly else _trial(config, settings)
    if trial is not None:
        # A verdict needs every case, also those behind one that fails.
        config.option.maxfail = 0
        orders = trial.orders(orders)
        _hide_records(config)
    controller = Controller(config, settings, orders, trial)
    manager.register(controller, _CONTROLLER)
    if settings.active and not config.option.collectonly:
        from pytest_kopt.session.supervisor import Supervisor

        manager.register(Supervisor(config, controller), "kopt-supervisor")
    elif getattr(config.option, "dist", "no") != "no":
        from pytest_kopt.session.xdist import XdistBridge

        manager.register(XdistBridge(controller), "kopt-xdist")
    else:
        manager.register(Worker(config, orders), WORKER)
    if settings.sanitize and not config.option.collectonly:
        from pytest_kopt.session.supervisor import Sanitizing

        manager.register(Sanitizing(config, controller.measurements, settings.sanitize))
    if (trial or settings.calibrate) and not controller.is_settled:
        controller.measurements.warm_up()
        if controller.orders.compares:
            # The parent of the processes imports torch meanwhile.
            load_student()


def _trial(config: pytest.Config, settings: Settings) -> Trial | None:
    """Return what this session judges, None when it only runs cases."""
    if settings.base is not None:
        from pytest_kopt.trials.pull_request.against_base import PullRequestGate

        return PullRequestGate(config, settings)
    if settings.round is not None:
        from pytest_kopt.trials.harness import PytestSetup
        from pytest_kopt.trials.opening import open_trial

        return open_trial(settings, PytestSetup.of(config))
    return None
