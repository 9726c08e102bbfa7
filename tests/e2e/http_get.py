"""HTTP from inside a namespace of the lab."""

from __future__ import annotations

import http.client
from collections.abc import Mapping

import msgspec

from pointsman.lab.netns import Namespace


class Answer(msgspec.Struct, frozen=True):
    """What a server said; status 0 when nobody answered."""

    status: int
    headers: Mapping[str, str] = {}
    text: str = ""


def get(namespace: Namespace, address: str, port: int, path: str) -> Answer:
    connection = http.client.HTTPConnection(address, port, timeout=10)
    try:
        with namespace.entered():
            connection.connect()
        connection.request("GET", path)
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read().decode())
    except OSError:
        return Answer(0)
    finally:
        connection.close()
