"""The question: `SERVICE[:PORT]`, `IP[:PORT]` or `:NODEPORT`, each with an optional `/protocol`."""

from __future__ import annotations

import msgspec

from pointsman.errors import PointsmanError
from pointsman.model.addresses import address_from_text, port_from_text, split_host_port
from pointsman.model.service import Protocol

FORMS = "write SERVICE, NAMESPACE/SERVICE, SERVICE:PORT, IP, IP:PORT, [IPv6]:PORT or :NODEPORT"


class BadQuestion(PointsmanError):
    """The target or the client of a question cannot be understood; the message shows the forms."""


class Target(msgspec.Struct, frozen=True):
    """What is asked about."""

    text: str
    namespace: str = ""
    service: str = ""
    port: str = ""
    """A port's name or number; empty for all."""
    address: bytes | None = None
    """Empty bytes for a node port without an address; None when a Service is asked about."""
    number: int = 0
    protocol: Protocol | None = None


def target_from_text(text: str) -> Target:
    """The target; raises BadQuestion with the accepted forms."""
    body, protocol = text.strip(), None
    head, slash, tail = body.rpartition("/")
    if slash and tail.upper() in Protocol.__members__:
        body, protocol = head, Protocol[tail.upper()]
    if not body:
        raise BadQuestion(f"{text!r} names nothing: {FORMS}")
    found = _address_and_port(body)
    if found is not None:
        address, number = found
        return Target(text=text, address=address, number=number, protocol=protocol)
    name, colon, port = body.partition(":")
    namespace, slash, service = name.rpartition("/")
    if not service or (slash and not namespace) or "/" in namespace or (colon and not port) or ":" in port:
        raise BadQuestion(f"cannot understand {text!r}: {FORMS}")
    return Target(text=text, namespace=namespace, service=service, port=port, protocol=protocol)


def _address_and_port(text: str) -> tuple[bytes, int] | None:
    """Address and port where the text means one; port 0 stands for any."""
    whole = address_from_text(text.removeprefix("[").removesuffix("]"))
    if whole is not None:
        return whole, 0
    host, port_text = split_host_port(text) or ("", "")
    port = port_from_text(port_text)
    address = address_from_text(host) if host else b""
    return (address, port) if address is not None and port else None
