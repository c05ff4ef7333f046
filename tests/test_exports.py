"""`pytest_kopt_verdict`: what a user's own export gets, and that it disturbs nobody."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.show.exports.publish import publish

PAGE = (Path(__file__).parents[1] / "docs/exports.md").read_text()
VERDICT = Verdict(
    decision=Decision.ROLLED_BACK,
    reason="shown to be slower",
    next_step="another hypothesis",
    compare="paired",
    policy="primus",
    campaign="softmax",
    round=3,
)


@contextmanager
def webhook() -> Iterator[tuple[str, list[bytes]]]:
    """Yield the address of a server on this host and the bodies that are posted to it."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *told: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def published(
    pytester: pytest.Pytester, conftest: str, *options: str, comment: str | None = None
) -> list[str]:
    pytester.makeconftest(conftest)
    config = pytester.parseconfigure(*options)
    config.option.kopt_comment = comment
    return publish(config, VERDICT, [])


def test_the_documented_webhook(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"<!-- file: conftest.py -->\n```python\n(.*?)```", PAGE, re.DOTALL)
    assert found
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    with webhook() as (url, bodies):
        monkeypatch.setenv("VERDICT_WEBHOOK", url)
        assert published(pytester, found[1]) == [f"verdict sent to {url}"]
    line = bodies[0].decode()
    assert line.endswith("}\n") and line.count("\n") == 1
    assert json.loads(line) == {
        "campaign": "softmax",
        "round": 3,
        "decision": "ROLLED_BACK",
        "reason": "shown to be slower",
        "aggregate": None,
    }


def test_one_that_raises_is_named_and_disturbs_no_other(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    pytester.makepyfile(
        teller="def pytest_kopt_verdict(verdict, results):\n    return [f'told {verdict.round}']\n"
    )
    pytester.syspathinsert()
    lines = published(
        pytester,
        "def pytest_kopt_verdict(config):\n    raise OSError('no route to host')\n",
        *("-p", "teller"),
        comment="out/comment.md",
    )
    assert "conftest.py: pytest_kopt_verdict: OSError: no route to host" in lines
    assert "told 3" in lines
    assert "rolled back" in (pytester.path / "out/comment.md").read_text()


def test_a_calibration_is_written_whole_before_anything_is_shown(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pytester.path / "out" / "noise.json"
    noise = {"schema_version": 1, "geomean_sd_pct": 0.1}
    seen = []

    def lines(found: object) -> list[str]:
        seen.append(json.loads(path.read_text()) == found == noise)
        return []

    monkeypatch.setattr("pytest_kopt.trials.calibration.calibrate", lambda *given: noise)
    monkeypatch.setattr("pytest_kopt.show.terminal.noise_lines", lines)
    pytester.makepyfile(
        """
        import pytest
        import torch

        @pytest.mark.kopt(schema="memory")
        def test_double(kopt):
            kopt(
                lambda x: x + x,
                inputs=lambda: (torch.randn(64),),
                reference=lambda x: 2 * x.double(),
                dims={"n": 64},
                nbytes=512,
            )
        """
    )
    options = ("--kopt-calibrate", "4", "--kopt-verdict", str(path), "--kopt-device", "cpu")
    run = pytester.inline_run("-p", "no:xdist", *options)
    assert run.ret == 0
    assert seen == [True]
