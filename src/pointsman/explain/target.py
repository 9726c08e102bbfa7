"""The question, in the forms people type: names as kubectl, DNS and URLs write them, addresses, node ports."""

from __future__ import annotations

import msgspec

from pointsman.errors import PointsmanError
from pointsman.model.addresses import address_from_text, port_from_text, split_host_port
from pointsman.model.service import Protocol

FORMS = (
    "write SERVICE, NAMESPACE/SERVICE, SERVICE.NAMESPACE.svc, POD, each with or without :PORT, "
    "or IP, IP:PORT, [IPv6]:PORT or :NODEPORT"
)

EVERYWHERE = "*"
"""The namespace that means all."""

_SERVICE_KINDS = frozenset(("svc", "service", "services"))
_POD_KINDS = frozenset(("po", "pod", "pods"))
_SCHEMES = {"http": "80", "https": "443"}


class BadQuestion(PointsmanError):
    """The target or the client of a question cannot be understood; the message shows the forms."""


class Question(msgspec.Struct, frozen=True):
    """What the running proxy is asked to explain, as typed."""

    target: str = ""
    namespace: str = ""
    """Where a name without one is looked for."""
    client: str = msgspec.field(default="", name="from")
    kernel: bool = True
    """The kernel and the host are checked."""


class Target(msgspec.Struct, frozen=True):
    """What is asked about."""

    text: str
    namespace: str = ""
    service: str = ""
    """A Service's name or, when there is none of that name, a pod's."""
    port: str = ""
    """A port's name or number; empty for all."""
    address: bytes | None = None
    """Empty bytes for a node port without an address; None when a name is asked about."""
    number: int = 0
    protocol: Protocol | None = None
    pod: bool = False
    """The name can only be a pod's."""


def drop_kind(name: str) -> str:
    """Return the name of a Service without the kind that kubectl puts before it: `svc/web`, `shop/service/web`."""
    *parts, last = name.split("/")
    if parts and parts[-1] in _SERVICE_KINDS:
        parts.pop()
    return "/".join((*parts, last))


def parse_target(text: str, namespace: str = "") -> Target:
    """Return the target; `namespace` is where a name without one is looked for. Raises BadQuestion with the accepted forms."""
    body, port = _split_scheme(text.strip())
    protocol = None
    head, slash, tail = body.rpartition("/")
    if slash and tail.upper() in Protocol.__members__:
        body, protocol = head, Protocol[tail.upper()]
    if not body:
        raise BadQuestion(f"{text!r} names nothing: {FORMS}")
    found = _parse_address(body)
    if found is not None:
        address, number = found
        return Target(text=text, address=address, number=number or int(port or 0), protocol=protocol)
    name, colon, own_port = body.partition(":")
    if (colon and not own_port) or ":" in own_port or "[" in body or "]" in body:
        raise _build_unclear(text)
    target = _parse_name(text, name, own_port or port, protocol)
    return msgspec.structs.replace(target, namespace=target.namespace or namespace)


def _split_scheme(text: str) -> tuple[str, str]:
    """Return the host of a URL and the port that its scheme implies; other text as it is."""
    scheme, separator, rest = text.partition("://")
    if not separator:
        return text, ""
    if scheme.lower() not in _SCHEMES:
        raise BadQuestion(f"{text!r}: only http and https have a port of their own; {FORMS}")
    host = rest.partition("/")[0].rpartition("@")[2]
    has_port = (split_host_port(host) or ("", ""))[1]
    return host, "" if has_port else _SCHEMES[scheme.lower()]


def _parse_name(text: str, name: str, port: str, protocol: Protocol | None) -> Target:
    parts = name.split("/")
    if not all(parts) or len(parts) > 3:
        raise _build_unclear(text)
    is_service = is_pod = False
    if len(parts) > 1 and parts[-2] in _SERVICE_KINDS | _POD_KINDS:
        kind = parts.pop(-2)
        is_service, is_pod = kind in _SERVICE_KINDS, kind in _POD_KINDS
    if len(parts) > 2:
        raise _build_unclear(text)
    namespace = parts[0] if len(parts) == 2 else ""
    target = Target(text, namespace, parts[-1], port, protocol=protocol, pod=is_pod)
    return target if namespace or is_pod or is_service else _parse_dns_name(target)


def _parse_dns_name(target: Target) -> Target:
    """Return the Service behind a DNS name, whatever the cluster's domain: `[_port._protocol.|POD.]SERVICE.NAMESPACE[.svc[.DOMAIN]]`."""
    name, port, protocol = target.service.rstrip("."), target.port, target.protocol
    labels = name.split(".")
    if not all(labels):
        raise _build_unclear(target.text)
    if len(labels) == 1:
        return msgspec.structs.replace(target, service=name)
    if len(labels) > 3 and labels[0].startswith("_") and labels[1][1:].upper() in Protocol.__members__:
        port, protocol = port or labels[0][1:], protocol or Protocol[labels[1][1:].upper()]
        del labels[:2]
    elif len(labels) > 3 and labels[3] == "svc" != labels[2]:
        del labels[0]
    if len(labels) > 2 and labels[2] != "svc":
        raise BadQuestion(
            f"{target.text!r} is not the DNS name of a Service, which is SERVICE.NAMESPACE.svc.DOMAIN: {FORMS}"
        )
    return msgspec.structs.replace(
        target, service=labels[0], namespace=labels[1], port=port, protocol=protocol
    )


def _build_unclear(text: str) -> BadQuestion:
    return BadQuestion(f"cannot understand {text!r}: {FORMS}")


def _parse_address(text: str) -> tuple[bytes, int] | None:
    """Return address and port where the text means one; port 0 means any. Raises BadQuestion for a mistyped one."""
    whole = address_from_text(text.removeprefix("[").removesuffix("]"))
    if whole is not None:
        return whole, 0
    host, port_text = split_host_port(text) or (text, "")
    address = address_from_text(host) if host else b""
    if address is None:
        if _is_like_address(host):
            raise BadQuestion(f"{host!r} is not an IP address{_find_flaw(host)}")
        return None
    port = port_from_text(port_text)
    if not port:
        raise BadQuestion(
            f"{port_text!r} in {text!r} is not a port: write a number from 1 to 65535; or {FORMS}"
        )
    return address, port


def _is_like_address(host: str) -> bool:
    """Return whether the text must be an address: only digits and dots, or colons as in IPv6."""
    digits = host.replace(".", "")
    return (digits != host and digits.isascii() and digits.isdigit()) or "::" in host or host.count(":") > 2


def _find_flaw(host: str) -> str:
    if ":" in host:
        return ": write IPv6 as fd00::1 or [fd00::1]:80"
    parts = host.split(".")
    high = next((part for part in parts if len(part) > 3 or int(part or 0) > 255), "")
    if high:
        return f": {high} is greater than 255"
    return f": it has {len([part for part in parts if part])} numbers, and not 4"
