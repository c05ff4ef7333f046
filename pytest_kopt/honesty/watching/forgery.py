"""What a kernel left in pytest: lines in its test's report, and plugins that nobody registered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pytest_kopt.honesty.finding import Finding


class PytestState:
    """What a test's report and pytest hold before a kernel of its is called."""

    def __init__(self, item: pytest.Item) -> None:
        self.item = item
        self.plugins = {*map(id, item.config.pluginmanager.get_plugins())}
        self.properties = len(item.user_properties)


def forged(before: PytestState) -> Iterator[Finding]:
    """Look for traces that a kernel left in pytest, and take them out of its test's report."""
    item, manager = before.item, before.item.config.pluginmanager
    properties = item.user_properties[before.properties :]
    del item.user_properties[before.properties :]
    strangers = [p for p in manager.get_plugins() if id(p) not in before.plugins]
    for stranger in strangers:
        manager.unregister(stranger)
    what = [f"put {name!r} into the test's report" for name, _ in properties]
    what += [f"registered the plugin {type(p).__qualname__}" for p in strangers]
    if what:
        advice = "rows come from what is measured; nothing else counts"
        yield Finding("forged-row", f"the call {', '.join(what)}", advice=advice)
