import pytest
from points import measure


@pytest.mark.kopt(schema="single")
@pytest.mark.parametrize("number", range(6, 12))
def test_second(kopt, number):
    measure(kopt, number)
