"""HTTP over asyncio streams: HTTP/2 where the server offers it by ALPN, HTTP/1.1 otherwise.

Promise: `HttpClient.send` returns a `Response` or raises `HttpError`; so does `Response.read`. Nothing that a peer sends
leaves as another exception, and no message holds a header, a token or the password of a proxy.

Invariants: memory for unread data is bounded per response, by a flow-control window (HTTP/2) or the buffer of one
connection (HTTP/1.1). An HTTP/1.1 connection carries one request. An HTTP/2 connection carries all requests of one
`Connector` until the server sends GOAWAY, the connection is lost or the credentials change; then new requests use a new
connection, and open responses may finish on the old one.

A change that adds a way for a peer to fail must also raise a subclass of `HttpError`, and add an entry to the table of
lies in `tests/unit/kube/lies.py`. `pointsman.http.http2` is imported only after a server chose HTTP/2, because commands
that never connect must not pay for it.
"""
