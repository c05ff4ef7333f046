"""The one exception for input that a user can mend."""

from __future__ import annotations

from collections.abc import Iterable


class BadInput(Exception):
    """Something the user gave cannot be used; maps to exit code 4.

    The message names what is wrong, where it stands (file, key, option, column or case) and what
    would be legal. Raised before anything is measured or changed.
    """

    def __init__(self, what: str, *, where: str = "", legal: str | Iterable[str] = "") -> None:
        self.what = what
        self.where = where
        self.legal = legal if isinstance(legal, str) else ", ".join(legal)
        super().__init__(str(self))

    def __str__(self) -> str:
        text = f"{self.where}: {self.what}" if self.where else self.what
        return f"{text} (legal: {self.legal})" if self.legal else text
