"""Names of the chains of single service ports and endpoints.

They are a prefix and 16 characters of the base32 of a SHA-256 over the service port's printed name and
its protocol, for endpoints also `ip:port`. Sixteen characters are ten bytes, so only those are encoded.
"""

from __future__ import annotations

import hashlib

from pointsman.backends.netfilter import names
from pointsman.model.service import ServicePortName

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
"""Base32 ten bits at a time: three times as fast as the base64 module, for tens of thousands of endpoints."""


class ChainNames:
    """The names of one service port's chains."""

    def __init__(self, name: ServicePortName) -> None:
        identity = f"{name}{name.protocol.lower}".encode(errors="surrogatepass")
        self._start = hashlib.sha256(identity)

    @property
    def base(self) -> str:
        """What they share after their prefixes."""
        return _printed(self._start.digest())

    def of_endpoint(self, endpoint: str) -> str:
        """The chain of an endpoint, given as `ip:port`."""
        state = self._start.copy()
        state.update(endpoint.encode())
        return names.ENDPOINT + _printed(state.digest())


def _printed(digest: bytes) -> str:
    bits = int.from_bytes(digest[:10], "big")
    pairs = _PAIRS
    return (
        f"{pairs[bits >> 70]}{pairs[bits >> 60 & 1023]}{pairs[bits >> 50 & 1023]}{pairs[bits >> 40 & 1023]}"
        f"{pairs[bits >> 30 & 1023]}{pairs[bits >> 20 & 1023]}{pairs[bits >> 10 & 1023]}{pairs[bits & 1023]}"
    )
