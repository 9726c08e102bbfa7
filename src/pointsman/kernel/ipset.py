"""ipset over nfnetlink: create, add, delete, list, flush, destroy.

A message has many entries (the kernel takes a list of them). Adding one that exists or deleting one that does not is no
error, so a change can be repeated safely.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Mapping, Sequence

from pointsman.errors import Busy, KernelError
from pointsman.kernel import attributes as nla
from pointsman.kernel import netlink
from pointsman.kernel.ipvs_objects import SetEntry, SetHeader, SetType
from pointsman.kernel.netlink import Closable, Message, NetlinkSocket
from pointsman.model.addresses import Family

NEEDS = "CONFIG_IP_SET and the set types (modules ip_set, ip_set_hash_*, ip_set_bitmap_port)"

SUBSYSTEM = 6
CMD_CREATE, CMD_DESTROY, CMD_LIST, CMD_ADD, CMD_DELETE, CMD_TYPE = 2, 3, 7, 9, 10, 13

ATTR_PROTOCOL, ATTR_NAME, ATTR_TYPE, ATTR_REVISION, ATTR_FAMILY = 1, 2, 3, 4, 5
ATTR_FLAGS, ATTR_DATA, ATTR_ENTRIES, ATTR_LINE = 6, 7, 8, 9
DATA_IP, DATA_PORT, DATA_PORT_TO, DATA_PROTOCOL, DATA_LINE = 1, 4, 5, 7, 9
DATA_HASH_SIZE, DATA_MAX_ELEMENTS, DATA_ELEMENTS, DATA_REFERENCES = 18, 19, 24, 25
DATA_IP2, DATA_CIDR2 = 20, 21
ADDRESS_V4, ADDRESS_V6 = 1, 2

_NET_ORDER = 0x4000
_PROTOCOL_VERSION = 6
_NFPROTO = {Family.IPV4: 2, Family.IPV6: 10, None: 0}
_FAMILIES = {2: Family.IPV4, 10: Family.IPV6}
_LIST_HEADERS = 1 << 2
_ENTRIES_PER_MESSAGE = 250
_BUSY = 4100
_PRIVATE_ERRORS = {
    4097: "the kernel has another version of the ipset protocol",
    4098: "this kernel lacks the set type",
    4099: "the kernel allows no more sets",
    _BUSY: "a rule still uses the set",
    errno.EEXIST: "a set of that name has another type or options",
    4352: "the set is full (maxelem)",
}


def _build_message(command: int, *attributes: bytes, flags: int = 0, family: int = 0) -> Message:
    header = struct.pack(">BBH", family, 0, 0)
    version = nla.pack_u8(ATTR_PROTOCOL, _PROTOCOL_VERSION)
    return Message((SUBSYSTEM << 8) | command, flags, header + version + b"".join(attributes))


def _encode_address(kind: int, address: bytes) -> bytes:
    inner = ADDRESS_V4 if len(address) == 4 else ADDRESS_V6
    return nla.pack_nested(kind, nla.pack_attribute(inner | _NET_ORDER, address))


def encode_entry(entry: SetEntry) -> bytes:
    """Return the attributes of one entry."""
    parts = []
    if entry.address:
        parts.append(_encode_address(DATA_IP, entry.address))
    if entry.port or entry.protocol:
        parts.append(nla.pack_attribute(DATA_PORT | _NET_ORDER, struct.pack(">H", entry.port)))
    if entry.protocol:
        parts.append(nla.pack_u8(DATA_PROTOCOL, entry.protocol))
    if entry.second:
        parts.append(_encode_address(DATA_IP2, entry.second))
    if entry.prefix:
        parts.append(nla.pack_u8(DATA_CIDR2, entry.prefix))
    return b"".join(parts)


def encode_entries(command: int, name: str, entries: Sequence[SetEntry]) -> Message:
    """Return one message that adds (CMD_ADD) or deletes (CMD_DELETE) entries; a line number identifies the one that failed."""
    lines = [
        nla.pack_nested(
            ATTR_DATA,
            encode_entry(entry),
            nla.pack_attribute(DATA_LINE | _NET_ORDER, struct.pack(">I", n)),
        )
        for n, entry in enumerate(entries, 1)
    ]
    return _build_message(
        command,
        nla.pack_text(ATTR_NAME, name),
        nla.pack_nested(ATTR_ENTRIES, *lines),
        nla.pack_u32(ATTR_LINE, 1),
    )


def decode_entry(data: bytes, kind: SetType) -> SetEntry:
    """Return an entry as the kernel lists it."""
    fields = nla.parse_attributes(data)
    port = int.from_bytes(fields.get(DATA_PORT, b""), "big")
    if kind is SetType.BITMAP_PORT:
        return SetEntry(port=port)
    address = _parse_address(fields[DATA_IP])
    if kind is SetType.HASH_IP:
        return SetEntry(address)
    protocol = fields.get(DATA_PROTOCOL, b"\0")[0]
    if kind is SetType.HASH_IP_PORT:
        return SetEntry(address, protocol, port)
    second = _parse_address(fields[DATA_IP2])
    if kind is SetType.HASH_IP_PORT_IP:
        return SetEntry(address, protocol, port, second)
    width = len(second) * 8
    return SetEntry(address, protocol, port, second, fields[DATA_CIDR2][0] if DATA_CIDR2 in fields else width)


def _parse_address(data: bytes) -> bytes:
    return next(value for _, value in nla.iter_attributes(data))


def _decode_header(name: str, fields: Mapping[int, bytes]) -> SetHeader | None:
    try:
        kind = SetType(nla.parse_text(fields[ATTR_TYPE]))
    except ValueError:
        return None
    family = _FAMILIES.get(fields[ATTR_FAMILY][0]) if ATTR_FAMILY in fields and kind.has_family else None
    data = nla.parse_attributes(fields.get(ATTR_DATA, b""))
    return SetHeader(
        name,
        kind,
        family,
        max_elements=int.from_bytes(data.get(DATA_MAX_ELEMENTS, b""), "big"),
        references=int.from_bytes(data.get(DATA_REFERENCES, b""), "big"),
        elements=int.from_bytes(data[DATA_ELEMENTS], "big") if DATA_ELEMENTS in data else -1,
    )


def decode_listing(payloads: Iterable[bytes]) -> list[tuple[SetHeader, list[SetEntry]]]:
    """Return the sets and entries of a dump. A long set has several messages; only the first names its type."""
    found: list[tuple[SetHeader, list[SetEntry]]] = []
    headers: dict[str, SetHeader] = {}
    for payload in payloads:
        fields = nla.parse_attributes(payload, 4)
        name = nla.parse_text(fields.get(ATTR_NAME, b""))
        if ATTR_TYPE in fields:
            described = _decode_header(name, fields)
            if described is not None:
                headers[name] = described
        header = headers.get(name)
        if header is not None:
            listed = nla.iter_attributes(fields.get(ATTR_ENTRIES, b""))
            entries = [decode_entry(data, header.type) for kind, data in listed if kind == ATTR_DATA]
            found.append((header, entries))
    return found


class IpsetSocket(Closable):
    """The sets of the network namespace it was opened in."""

    def __init__(self) -> None:
        self._netlink = NetlinkSocket(netlink.NETLINK_NETFILTER)
        self._revisions: dict[tuple[SetType, Family | None], int] = {}

    def close(self) -> None:
        self._netlink.close()

    def check(self, types: Iterable[tuple[SetType, Family | None]]) -> None:
        """Raise NotSupported naming the first set type this kernel lacks."""
        for kind, family in types:
            self._find_revision(kind, family)

    def create(self, header: SetHeader) -> None:
        """Create a set; one that exists with the same type is kept as it is."""
        if header.type is SetType.BITMAP_PORT:
            data = nla.pack_attribute(DATA_PORT | _NET_ORDER, b"\0\0") + nla.pack_attribute(
                DATA_PORT_TO | _NET_ORDER, b"\xff\xff"
            )
        else:
            data = nla.pack_attribute(
                DATA_HASH_SIZE | _NET_ORDER, struct.pack(">I", 1024)
            ) + nla.pack_attribute(DATA_MAX_ELEMENTS | _NET_ORDER, struct.pack(">I", header.max_elements))
        family = header.family if header.type.has_family else None
        request = _build_message(
            CMD_CREATE,
            nla.pack_text(ATTR_NAME, header.name),
            nla.pack_text(ATTR_TYPE, header.type.value),
            nla.pack_u8(ATTR_REVISION, self._find_revision(header.type, family)),
            nla.pack_u8(ATTR_FAMILY, _NFPROTO[family]),
            nla.pack_nested(ATTR_DATA, data),
            flags=netlink.NLM_F_CREATE,
            family=_NFPROTO[family],
        )
        reply = self._netlink.request((request,))[0]
        if reply.errno:
            raise _build_error(reply.errno, f"create ipset {header.name} ({header.type.value})")

    def list_headers(self) -> dict[str, SetHeader]:
        """Return every set of a known type, by name, without its entries."""
        return {header.name: header for header, _ in self._list(_LIST_HEADERS)}

    def list_entries(self, names: Iterable[str]) -> dict[str, set[SetEntry]]:
        """Return the entries of these sets, without those that do not exist or are of an unknown type."""
        present = self.list_headers()
        found: dict[str, set[SetEntry]] = {name: set() for name in names if name in present}
        for name, entries in found.items():
            for _, part in self._list(0, nla.pack_text(ATTR_NAME, name)):
                entries.update(part)
        return found

    def add(self, name: str, entries: Iterable[SetEntry]) -> dict[SetEntry, KernelError]:
        """Add entries; return those that were rejected, with the reason."""
        return self._change(CMD_ADD, name, list(entries))

    def delete(self, name: str, entries: Iterable[SetEntry]) -> dict[SetEntry, KernelError]:
        """Delete entries; return those that were rejected, with the reason."""
        return self._change(CMD_DELETE, name, list(entries))

    def destroy(self, name: str) -> None:
        """Remove a set; raises Busy while a rule still matches on it."""
        reply = self._netlink.request((_build_message(CMD_DESTROY, nla.pack_text(ATTR_NAME, name)),))[0]
        if reply.errno:
            raise _build_error(reply.errno, f"destroy ipset {name}")

    def _change(self, command: int, name: str, entries: list[SetEntry]) -> dict[SetEntry, KernelError]:
        chunks = [entries[i : i + _ENTRIES_PER_MESSAGE] for i in range(0, len(entries), _ENTRIES_PER_MESSAGE)]
        replies = self._netlink.request([encode_entries(command, name, chunk) for chunk in chunks])
        retried = [
            entry for chunk, reply in zip(chunks, replies, strict=True) if reply.errno for entry in chunk
        ]
        if not retried:
            return {}
        verb = "add to" if command == CMD_ADD else "delete from"
        singles = self._netlink.request([encode_entries(command, name, (entry,)) for entry in retried])
        return {
            entry: _build_error(reply.errno, f"{verb} ipset {name} {entry}")
            for entry, reply in zip(retried, singles, strict=True)
            if reply.errno
        }

    def _list(self, flags: int, name: bytes = b"") -> list[tuple[SetHeader, list[SetEntry]]]:
        request = _build_message(
            CMD_LIST, nla.pack_attribute(ATTR_FLAGS | _NET_ORDER, struct.pack(">I", flags)), name
        )
        answers = self._netlink.dump(request, "list ipsets", needs=NEEDS)
        return decode_listing(answer.payload for answer in answers)

    def _find_revision(self, kind: SetType, family: Family | None) -> int:
        """Return the newest revision of a set type that this kernel has."""
        known = self._revisions.get((kind, family))
        if known is not None:
            return known
        number = _NFPROTO[family]
        request = _build_message(
            CMD_TYPE, nla.pack_text(ATTR_TYPE, kind.value), nla.pack_u8(ATTR_FAMILY, number), family=number
        )
        for answer in self._netlink.request_one(request, f"look up ipset type {kind.value}", needs=NEEDS):
            revision = nla.parse_attributes(answer.payload, 4).get(ATTR_REVISION)
            if revision is not None:
                self._revisions[kind, family] = revision[0]
                return revision[0]
        raise KernelError(f"the kernel did not describe ipset type {kind.value}", errno.EPROTO)


def _build_error(code: int, what: str) -> KernelError:
    reason = _PRIVATE_ERRORS.get(code)
    if code == _BUSY:
        return Busy(f"{what}: {reason}", code)
    if reason is not None:
        return KernelError(f"{what}: {reason}", code)
    return netlink.build_kernel_error(code, what, needs=NEEDS)
