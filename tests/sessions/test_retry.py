"""`kopt retry N` measures a recorded candidate again, as a round of its own."""

from __future__ import annotations

from .project import KERNEL, Project
from .sources import doubled_kernel


def test_a_candidate_is_measured_again(started: Project) -> None:
    slow, broken = doubled_kernel(312.5), doubled_kernel(125.0, factor=3.0)
    started.write(KERNEL, slow)
    notes = started.notes(hypothesis="wider tiles", bucket="K1", tip="wider is better")
    assert started.play(2, "--kopt-notes", notes).code == 8
    assert started.read(KERNEL) != slow
    run = started.kopt("retry", "2")
    assert run.code == 8 and "round 2: kernels/doubled.py restored" in run.text, run.text
    assert started.verdict(3)["decision"] == "ROLLED_BACK"
    snapshot = started.campaign / "rounds/round-3/kernel_snapshot" / KERNEL
    assert snapshot.read_text() == slow and started.read(KERNEL) != slow
    events = [event["event"] for event in started.ledger()]
    assert events.count("restoring") == events.count("restored") == 1
    (notes,) = (e["notes"] for e in started.ledger() if e["event"] == "decided" and e["round"] == 3)
    assert notes == {"summary": "round 2 again", "hypothesis": "wider tiles", "bucket": "K1"}

    started.write(KERNEL, broken)
    assert started.play(4).code == 1
    before = started.contents()
    run = started.kopt("retry", "2")
    assert run.code == 4 and "round 4 is open" in run.refusal and "kopt discard" in run.refusal
    assert started.contents() == before
    assert started.kopt("discard").code == 0
    assert started.verdict(4)["decision"] == "ROLLED_BACK"
    run = started.kopt("retry", "1")
    assert run.code == 4 and "the same code as round 1: nothing to measure" in run.refusal
