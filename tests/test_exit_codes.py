from __future__ import annotations

import pytest

from pytest_kopt.decide.verdict import Decision, Verdict
from pytest_kopt.exit_codes import ExitCode

CODE_OF_DECISION = {
    "BASELINE": 0,
    "ACCEPTED": 0,
    "ACCEPTED_WITH_NOTE": 0,
    "REPAIR": 1,
    "ROLLED_BACK": 8,
    "SPLIT": 8,
    "REJECTED_OVERFIT": 8,
    "INCONCLUSIVE": 9,
    "INCOMPLETE": 11,
}


def test_the_codes_are_exactly_those_of_the_contract() -> None:
    assert sorted(int(code) for code in ExitCode) == [0, 1, 4, 8, 9, 10, 11]


def test_the_contract_names_every_decision() -> None:
    assert {decision.value for decision in Decision} == set(CODE_OF_DECISION)


@pytest.mark.parametrize(("name", "code"), CODE_OF_DECISION.items())
def test_each_decision_has_the_contracts_exit_code(name: str, code: int) -> None:
    verdict = Verdict(decision=Decision(name), reason="-", compare="stored", policy="primus")
    assert verdict.exit_code == code
