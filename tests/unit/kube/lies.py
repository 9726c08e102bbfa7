"""Answers that no honest API server gives, as bytes on the wire: a table of them, and parts to make up more."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from typing import Any

from tests.fake import protobuf
from tests.harness.kube_objects import endpoint_slice


@dataclass(frozen=True)
class Lie:
    """An answer to a list or to a watch."""

    name: str
    answer: bytes
    watch: bool
    """To watches; otherwise to lists."""
    hold: bool = False
    """Nothing more is said, and the connection stays open."""


def http(body: bytes = b"", status: str = "200 OK", **headers: str) -> bytes:
    """A well-formed answer with this body."""
    headers = {"Content_Length": str(len(body)), "Content_Type": "application/json"} | headers
    lines = [f"HTTP/1.1 {status}", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    """A well-formed chunked answer, as watches are."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def listing(**fields: Any) -> bytes:
    return json.dumps(
        {"kind": "ServiceList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": []}
        | fields
    ).encode()


def line(type_: str, **fields: Any) -> bytes:
    return json.dumps({"type": type_, "object": fields}).encode() + b"\n"


DEEP = b"[" * 200_000 + b"]" * 200_000
BOMB = gzip.compress(bytes(150 << 20), 9)
"""150 MiB of nothing in 150 KiB."""
NAMELESS: dict[str, Any] = {"metadata": {}}

_ANY = {
    "nothing at all": b"",
    "no HTTP": b"SSH-2.0-OpenSSH_9.9\r\n",
    "another protocol's frames": b"\x00\x00\x12\x04\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x80",
    "half a status line": b"HTTP/1.1 20",
    "a status that is no number": b"HTTP/1.1 OK 200\r\n\r\n",
    "a status beyond all numbers": b"HTTP/1.1 99999999999999999999 Huge\r\nContent-Length: 0\r\n\r\n",
    "headers without end": b"HTTP/1.1 200 OK\r\n" + b"X-Lie: yes\r\n" * 20_000,
    "a header line without end": b"HTTP/1.1 200 OK\r\nX-Lie: " + b"y" * 2_000_000,
    "a header with a control character": b"HTTP/1.1 200 OK\r\nX-Lie: a\x00b\r\nContent-Length: 0\r\n\r\n",
    "a negative length": b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\nhello",
    "two lengths": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 9\r\n\r\nhello",
    "less than the length says": b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n{",
    "chunks whose length is no number": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n",
    "a chunk longer than memory": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{",
    "an encoding nobody asked for": http(b"\x0b\x02\x80{}", Content_Encoding="br"),
    "gzip that is not": http(b"{}", Content_Encoding="gzip"),
    "gzip that ends early": http(gzip.compress(listing())[:-9], Content_Encoding="gzip"),
    "gzip that unpacks to memory's end": http(BOMB, Content_Encoding="gzip"),
    "a redirect": http(b"", "302 Found", Location="http://127.0.0.1:1/"),
    "another protocol, switched to": http(
        b"", "101 Switching Protocols", Upgrade="h2c", Connection="Upgrade"
    ),
    "no content": b"HTTP/1.1 204 No Content\r\n\r\n",
    "a refusal that is not UTF-8": http(b'{"message":"\xff\xfe"}', "500 Internal Server Error"),
    "a refusal nested without end": http(b'{"message":%s}' % DEEP, "500 Internal Server Error"),
    "a refusal of another shape": http(b'{"message":{"a":1},"code":"x"}', "400 Bad Request"),
    "a refusal that forges a log line": http(
        b'{"message":"x\\nE1118 00:00:00.000000 1 x.py:1] \\"forged\\""}', "500 Internal\x0bServer Error"
    ),
    "a refusal that unpacks to memory's end": http(BOMB, "503 Service Unavailable", Content_Encoding="gzip"),
    "a refusal cut short": http(b'{"message":"x"}', "500 Internal Server Error")[:-4],
    "wait a day": http(b"{}", "429 Too Many Requests", Retry_After="86400"),
    "wait for ever": http(b"{}", "429 Too Many Requests", Retry_After="9" * 400),
    "wait until yesterday": http(b"{}", "429 Too Many Requests", Retry_After="-1"),
}
_LISTS = {
    "a list that is no JSON": http(b"<html>maintenance</html>"),
    "a list that is not UTF-8": http(b'{"metadata":{"resourceVersion":"7"},"items":["\xff"]}'),
    "a list nested without end": http(b'{"metadata":{"resourceVersion":"7"},"items":%s}' % DEEP),
    "a list that is a number": http(b"17"),
    "a list of numbers": http(listing(items=[1, 2, 3])),
    "a list of nameless objects": http(listing(items=[NAMELESS, NAMELESS], metadata={"resourceVersion": ""})),
    "a list of another kind": http(
        listing(kind="EndpointSliceList", items=[{"metadata": {"name": "a", "namespace": "default"}}])
    ),
    "a list of another kind in protobuf": http(
        protobuf.Encoder().listing(
            "EndpointSlice",
            "discovery.k8s.io/v1",
            {"resourceVersion": "7"},
            [endpoint_slice("a", "10.1.0.1")],
        ),
        Content_Type=protobuf.MEDIA_TYPE,
    ),
    "a list from no moment": http(listing(metadata={})),
    "a list whose version is an object": http(listing(metadata={"resourceVersion": {"a": 1}})),
}
_WATCHES = {
    "lines that are no JSON": chunked(b"<html>502</html>\n"),
    "lines that are not UTF-8": chunked(b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}\n'),
    "a line nested without end": chunked(b'{"type":"ADDED","object":%s}\n' % DEEP),
    "an error nested without end": chunked(b'{"type":"ERROR","object":{"message":%s}}\n' % DEEP),
    "an error that is a number": chunked(b'{"type":"ERROR","object":17}\n'),
    "an error with a code beyond all numbers": chunked(b'{"type":"ERROR","object":{"code":1e400}}\n'),
    "a bookmark of nothing": chunked(b'{"type":"BOOKMARK","object":null}\n'),
    "a bookmark nested without end": chunked(b'{"type":"BOOKMARK","object":{"metadata":%s}}\n' % DEEP),
    "a bookmark with an end of its own": chunked(
        line("BOOKMARK", metadata={"annotations": {"k8s.io/initial-events-end": "true"}})
    ),
    "an unknown type": chunked(line("EXPLODED", metadata={"name": "x", "namespace": "y"})),
    "a type that is an object": chunked(b'{"type":{},"object":{}}\n'),
    "nameless objects": chunked(line("ADDED", **NAMELESS), line("DELETED", **NAMELESS)),
    "an object that does not fit": chunked(line("ADDED", metadata={"name": "odd"}, spec=[1])),
    "objects of another kind": chunked(line("ADDED", **endpoint_slice("a", "10.1.0.1"))),
    "a bookmark of another kind": chunked(
        line(
            "BOOKMARK",
            kind="EndpointSlice",
            metadata={"resourceVersion": "7", "annotations": {"k8s.io/initial-events-end": "true"}},
        )
    ),
    "half a line": chunked(b'{"type":"MODIFIED","object":{"meta'),
    "chunks that break off": chunked(b'{"type":"MOD', end=b"5\r\n{"),
    "a version that is a book": chunked(line("BOOKMARK", metadata={"resourceVersion": "9" * 100_000})),
    "a version from another story": chunked(line("BOOKMARK", metadata={"resourceVersion": "\x00\n?&#%"})),
    "compressed lines with garbage behind": chunked(
        gzip.compress(line("BOOKMARK", metadata={"resourceVersion": "7"})), b"no gzip"
    ).replace(b"\r\n", b"\r\nContent-Encoding: gzip\r\n", 1),
    "nothing, compressed again and again": http(gzip.compress(b"") * 20_000, Content_Encoding="gzip"),
    "a line longer than memory": chunked(*[b"x" * (1 << 20)] * 40, end=b""),
}

LIES = [
    *(
        Lie(f"{name} ({'watch' if watch else 'list'})", raw, watch)
        for name, raw in _ANY.items()
        for watch in (False, True)
    ),
    *(Lie(name, raw, watch=False) for name, raw in _LISTS.items()),
    *(Lie(name, raw, watch=True) for name, raw in _WATCHES.items()),
    Lie("no answer to a watch", b"", watch=True, hold=True),
    Lie("headers of a watch that never end", b"HTTP/1.1 200 OK\r\nX-Lie: ", watch=True, hold=True),
    Lie("a watch that says nothing", chunked(end=b""), watch=True, hold=True),
]
