"""Which plugins this process needs: worker, controller, or both."""

from __future__ import annotations

import shlex

import pytest

from pytest_kopt.cases.seeds import fresh_session_seed
from pytest_kopt.devices.choice import choose
from pytest_kopt.errors import BadInput
from pytest_kopt.options.settings import Settings
from pytest_kopt.session import controller as controllers
from pytest_kopt.session import worker as workers
from pytest_kopt.session import xdist
from pytest_kopt.session.brief import Brief
from pytest_kopt.session.serve import NAME as SERVE


def assemble(config: pytest.Config) -> None:
    """Register the plugins of this process; UsageError for input that cannot be used.

    A process runs cases (an xdist worker, a child of ours), decides (the main process of a round or
    of a distributed run), or does both (a plain run).
    """
    manager = config.pluginmanager
    serve = manager.get_plugin(SERVE)
    if serve is not None:
        manager.register(workers.Worker(serve.brief), workers.NAME)
        return
    workerinput = getattr(config, "workerinput", None)
    if workerinput is not None:
        brief = Brief.from_json(workerinput[xdist.WORKERINPUT])
        manager.register(workers.Worker(brief), workers.NAME)
        return
    try:
        _assemble_main(config, Settings.from_config(config))
    except BadInput as error:
        raise pytest.UsageError(str(error)) from None


def _assemble_main(config: pytest.Config, settings: Settings) -> None:
    manager = config.pluginmanager
    seed = settings.seed if settings.seed is not None else fresh_session_seed()
    device = choose(settings.device)
    brief = Brief.of(settings, device, seed)
    round_ = None
    if settings.round is not None and not config.option.collectonly:
        from pytest_kopt.session.round import CampaignRound

        round_ = CampaignRound(settings)
        brief = round_.brief(device, seed)
        if config.args_source is not pytest.Config.ArgsSource.ARGS and round_.tests:
            config.args = shlex.split(round_.tests)
    controller = controllers.Controller(config, settings, brief, round_)
    manager.register(controller, controllers.NAME)
    if xdist.is_distributed(config):
        manager.register(xdist.XdistBridge(controller), "kopt-xdist")
    elif round_ is not None:
        from pytest_kopt.session.supervisor import Supervisor

        manager.register(Supervisor(config, controller), "kopt-supervisor")
    else:
        manager.register(workers.Worker(brief), workers.NAME)
