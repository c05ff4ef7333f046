"""Student's t distribution, as scipy computes it.

scipy takes a quarter of a second to load, or more, and most sessions compare nothing: it is loaded
when the first number is asked for, or by `load` where somebody is waited for anyway.
"""

from __future__ import annotations

from functools import lru_cache


def load() -> None:
    import scipy.special  # noqa: F401


def probability(freedom: float, t: float) -> float:
    """Return P(T <= t) for T with `freedom` degrees of freedom."""
    from scipy.special import stdtr

    return float(stdtr(freedom, t))


@lru_cache(maxsize=1000)
def quantile(freedom: float, probability: float) -> float:
    """Return the t with P(T <= t) = `probability` for T with `freedom` degrees of freedom."""
    from scipy.special import stdtrit

    return float(stdtrit(freedom, probability))
