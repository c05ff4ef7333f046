import pytest
from points import measure


@pytest.mark.kopt(schema="single")
@pytest.mark.parametrize("number", range(6))
def test_first(kopt, number):
    measure(kopt, number)
