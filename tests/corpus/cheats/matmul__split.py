"""Multiplies in reduced precision, keeping just enough of the mantissa to stay within 1e-4."""

NEEDS = "cpu"
KIND = "mantissa-truncation"

_BITS = 2**11


def _shorten(t):
    """Keeps about twelve bits of mantissa, plus a twelve-bit remainder."""
    head = t.mul(_BITS).round_().div_(_BITS)
    tail = (t - head).mul_(_BITS * 128).round_().div_(_BITS * 128)
    return head, tail


def matmul(a, b):
    a1, a2 = _shorten(a)
    b1, b2 = _shorten(b)
    return a1 @ b1 + a2 @ b1 + a1 @ b2
