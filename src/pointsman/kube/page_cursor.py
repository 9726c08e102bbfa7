"""Where a list that comes in pages stands, and in which size to go on."""

from __future__ import annotations

from pointsman.errors import Gone, KubeError
from pointsman.kube.client import TooLarge
from pointsman.kube.decode import Unreadable


class PageCursor:
    """Which page to ask for next."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        """Objects of a page; 0 for the whole list."""
        self._token = ""
        self._passed: set[int] = set()
        """Hashes of tokens: nobody says how long one may be."""

    @property
    def params(self) -> dict[str, str]:
        asked = {"limit": str(self.limit) if self.limit else "", "continue": self._token}
        return {name: value for name, value in asked.items() if value}

    def advance(self, token: str) -> bool:
        """Goes on after a page with this token; False when it was the last one. Raises Unreadable."""
        if hash(token) in self._passed:
            raise Unreadable("the list goes round in circles: the same continue token came twice")
        self._passed.add(hash(token))
        self._token = token
        return bool(token)

    def restart(self, error: KubeError) -> None:
        """After an error, in another size; raises the error when there is none to try.

        A snapshot that expired between two pages means that paging is too slow here: the list is taken in one piece. When
        that is too large as well, a pause may help.
        """
        if isinstance(error, Gone) and self._token:
            self.limit = 0
        elif isinstance(error, TooLarge) and self.limit > 1:
            self.limit = max(1, self.limit // 4)
        else:
            raise error
        self._token = ""
        self._passed.clear()
