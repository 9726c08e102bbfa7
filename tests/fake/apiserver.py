"""A fake API server: real HTTP list and watch on loopback, with every way of failing that real ones have.

    async with FakeApiServer() as server:
        server.add(service)                  # seen by open watches
        server.fail_next(500, path="services")
        server.break_watches(partial=b'{"type":"MOD')

`python -m tests.fake.serve_api` runs it alone, for tests of whole processes.
"""

from __future__ import annotations

import base64
import json
import socket
import ssl
from collections.abc import Callable
from typing import Any, ClassVar, Self

from aiohttp import web
from tests.fake import protobuf
from tests.fake.api_faults import Fault, Faults, SeenRequest, send_raw_answer
from tests.fake.api_watches import Watcher, Watches
from tests.fake.apistore import (
    API_VERSIONS,
    PATCHES,
    Conflict,
    KubeDict,
    Missing,
    PatchFailed,
    Store,
    UnsupportedField,
    merged,
    objects_in,
    resource_at,
    selector,
    status_object,
)
from tests.fake.http2_front import Http2Front, stop_accepting

from pointsman.kube.access import Access

_JSON = "application/json"


class FakeApiServer:
    """An API server for tests. All attributes may be changed while it runs."""

    http2_by_default: ClassVar[ssl.SSLContext | None] = None
    """Set by tests that run over both protocols."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        http2: ssl.SSLContext | None = None,
        watch_list: bool = True,
        cluster_ip_field: bool = True,
        missing_kinds: frozenset[str] = frozenset(),
        speaks_protobuf: bool = True,
    ) -> None:
        """With `tls` it speaks HTTPS; with `http2` HTTPS over HTTP/2 only."""
        self.store = Store()
        self.token = token
        self.watch_list = watch_list
        self.cluster_ip_field = cluster_ip_field
        self.missing_kinds = missing_kinds
        self.speaks_protobuf = speaks_protobuf
        """To clients that ask for it; without it, those that accept nothing else are refused."""
        self.compresses_watches = True
        """Those that begin with a list, for clients that accept gzip; API servers before 1.37 do not."""
        self.chunk_size: int | None = None
        """When set, watch events are sent in pieces of this size: slow and cut anywhere."""
        self.users: dict[str, KubeDict] = {}
        """Bearer tokens that TokenReviews accept: the user, and the `audiences` of the token."""
        self.permissions: set[tuple[str, str, str]] = set()
        """User name, verb and path that SubjectAccessReviews allow."""
        self.requests: list[SeenRequest] = []
        self._encoder = protobuf.Encoder()
        self._faults = Faults()
        self._watches = Watches(self.store, lambda: self.chunk_size)
        self._pages: dict[str, tuple[list[KubeDict], int]] = {}
        self._tls = tls
        settings = http2 or (None if tls else self.http2_by_default)
        self.http2 = None if settings is None else Http2Front(settings, host)
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None
        self._socket: socket.socket

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listens; after a `stop` on the same port as before."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{tail:.*}", self._handle)
        self._runner = web.AppRunner(app, shutdown_timeout=0.5, access_log=None, handler_cancellation=True)
        await self._runner.setup()
        self._socket = socket.create_server((self._host, self._port))
        await web.SockSite(self._runner, self._socket, ssl_context=self._tls).start()
        self._port = self._socket.getsockname()[1]
        if self.http2 is not None:
            await self.http2.start(self._port)

    async def stop(self) -> None:
        self.end_watches()
        if self.http2 is not None:
            await self.http2.stop()
        if self._runner is not None:
            await stop_accepting(self._socket.fileno())
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        if self.http2 is not None:
            return f"https://{self._host}:{self.http2.port}"
        return f"{'https' if self._tls else 'http'}://{self._host}:{self._port}"

    @property
    def access(self) -> Access:
        """Access without credentials, and without checking a certificate."""
        return Access(self.url, "test", insecure_skip_tls_verify=True)

    def add(self, item: KubeDict) -> KubeDict:
        return self.store.add(item)

    def update(self, item: KubeDict) -> KubeDict:
        return self.store.update(item)

    def delete(self, kind: str, key: str) -> None:
        self.store.delete(kind, key)

    def load(self, document: KubeDict) -> None:
        for item in objects_in(document):
            self.store.add(item)

    def compact(self) -> None:
        """Makes every version handed out so far too old, continue tokens included."""
        self.store.compact()
        self._pages.clear()

    def expire_pages(self) -> None:
        """Makes the continue tokens handed out so far too old."""
        self._pages.clear()

    def answer_raw(self, answer: bytes, **rest: Any) -> None:
        """The next `times` matching requests are answered with these bytes, which need not be HTTP at all."""
        self._faults.add(Fault(0, raw=answer, **rest))

    def fail_next(self, status: int, **rest: Any) -> None:
        """The next `times` matching requests are answered with this status."""
        self._faults.add(Fault(status, **rest))

    def clear_faults(self) -> None:
        """Answer all further requests as usual."""
        self._faults.clear()

    def watch_count(self, kind: str = "") -> int:
        """Open watches whose initial events, if any, are written."""
        return self._watches.count(kind)

    def send_raw(self, kind: str, data: bytes) -> None:
        """Sends bytes to all watches of a kind as they are: garbage, half events, huge events."""
        self._watches.send(kind, data)

    def send_bookmark(self, kind: str) -> None:
        self._watches.send_event(kind, {"type": "BOOKMARK", "object": self._watches.bookmark(kind)})

    def send_error(self, kind: str, code: int, reason: str = "", message: str = "") -> None:
        """Sends an ERROR event and ends the watches of a kind."""
        self._watches.send_event(kind, {"type": "ERROR", "object": status_object(code, message, reason)})
        self._watches.send(kind, None)

    def end_watches(self, kind: str = "") -> None:
        """Ends watches as a server does after timeoutSeconds."""
        self._watches.send(kind, None)

    def break_watches(self, kind: str = "", partial: bytes = b"") -> None:
        """Resets the connections of watches, after part of an event if given."""
        if partial:
            self._watches.send(kind, partial)
        self._watches.send(kind, ConnectionResetError())

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        seen = SeenRequest(request.method, request.path, dict(request.query), dict(request.headers), body)
        self.requests.append(seen)
        fault = self._faults.hitting(seen)
        if fault is not None and fault.raw is not None:
            await send_raw_answer(request.transport, fault.raw, hold=fault.hold)
        if fault is not None:
            return web.Response(
                status=fault.status, body=fault.content, headers=fault.headers, content_type=_JSON
            )
        if self.token and seen.headers.get("Authorization") != f"Bearer {self.token}":
            return _refusal(401, "Unauthorized")
        if request.method == "POST" and request.path in _REVIEWS:
            spec = json.loads(body)["spec"]
            return web.json_response({"status": _REVIEWS[request.path](self, spec)}, status=201)
        kind, namespace, name = resource_at(request.path)
        if not kind or kind in self.missing_kinds:
            return _refusal(404, "the server could not find the requested resource")
        try:
            if request.method == "GET" and not name:
                return await self._collection(request, seen, kind, namespace)
            return self._object(seen, kind, namespace, name)
        except Missing as error:
            return _refusal(404, f"{error} not found")
        except Conflict as error:
            return _refusal(409, f"{error} already exists")
        except PatchFailed as error:
            return _refusal(422, f"the patch cannot be applied at {error}")

    def _object(self, seen: SeenRequest, kind: str, namespace: str, name: str) -> web.Response:
        key = f"{namespace}/{name}" if namespace else name
        if seen.method == "GET":
            return web.json_response(self.store.get(kind, key))
        if seen.method == "DELETE":
            self.store.delete(kind, key)
            return web.json_response(status_object(200, "deleted"))
        item = json.loads(seen.body)
        if seen.method == "PATCH":
            patch = PATCHES.get(seen.headers.get("Content-Type", ""), merged)
            return web.json_response(self.store.update(patch(self.store.get(kind, key), item)))
        item.setdefault("kind", kind)
        if namespace:
            item.setdefault("metadata", {}).setdefault("namespace", namespace)
        if seen.method == "POST":
            return web.json_response(self.store.add(item), status=201)
        return web.json_response(self.store.update(item))

    def review_token(self, spec: KubeDict) -> KubeDict:
        user = self.users.get(spec["token"])
        meant_for = user.get("audiences", ["api"]) if user else []
        audiences = [one for one in spec.get("audiences", ["api"]) if one in meant_for]
        if user is None or not audiences:
            return {"user": {}, "error": "invalid bearer token"}
        known = {name: value for name, value in user.items() if name != "audiences"}
        return {"authenticated": True, "user": known, "audiences": audiences}

    def review_access(self, spec: KubeDict) -> KubeDict:
        asked = spec["nonResourceAttributes"]
        return {"allowed": (spec["user"], asked["verb"], asked["path"]) in self.permissions}

    async def _collection(
        self, request: web.Request, seen: SeenRequest, kind: str, namespace: str
    ) -> web.StreamResponse:
        try:
            selects = selector(
                kind,
                seen.query.get("labelSelector", ""),
                seen.query.get("fieldSelector", ""),
                cluster_ip_field=self.cluster_ip_field,
                namespace=namespace,
            )
        except UnsupportedField as error:
            return _refusal(400, str(error))
        accepted = seen.headers.get("Accept", _JSON)
        in_protobuf = self.speaks_protobuf and kind in protobuf.SCHEMAS and protobuf.MEDIA_TYPE in accepted
        if not in_protobuf and _JSON not in accepted and "*/*" not in accepted:
            return _refusal(406, f"only {_JSON} is served", "NotAcceptable")
        if seen.is_watch:
            return await self._watch(request, seen, kind, selects, in_protobuf=in_protobuf)
        return self._list(seen, kind, selects, in_protobuf=in_protobuf)

    def _list(
        self, seen: SeenRequest, kind: str, selects: Callable[[KubeDict], bool], *, in_protobuf: bool
    ) -> web.Response:
        token = seen.query.get("continue", "")
        if token:
            if token not in self._pages:
                return _refusal(410, "The provided continue parameter is too old", "Expired")
            items, version = self._pages.pop(token)
        else:
            stored = self.store.objects[kind]
            items, version = (
                [stored[key] for key in sorted(stored) if selects(stored[key])],
                self.store.version,
            )
        limit = int(seen.query.get("limit", "0")) or len(items)
        page, rest = items[:limit], items[limit:]
        metadata: KubeDict = {"resourceVersion": str(version)}
        if rest:
            token = base64.b64encode(f"{version}:{len(rest)}:{len(self.requests)}".encode()).decode()
            self._pages[token] = (rest, version)
            metadata |= {"continue": token, "remainingItemCount": len(rest)}
        version_name = API_VERSIONS[kind]
        if in_protobuf:
            body = self._encoder.listing(kind, version_name, metadata, page)
            response = web.Response(body=body, content_type=protobuf.MEDIA_TYPE)
        else:
            response = web.json_response(
                {"kind": f"{kind}List", "apiVersion": version_name, "metadata": metadata, "items": page}
            )
        response.enable_compression()
        return response

    async def _watch(
        self,
        request: web.Request,
        seen: SeenRequest,
        kind: str,
        selects: Callable[[KubeDict], bool],
        *,
        in_protobuf: bool,
    ) -> web.StreamResponse:
        initial = seen.query.get("sendInitialEvents") == "true"
        if initial and not self.watch_list:
            return _refusal(422, "sendInitialEvents: Forbidden: the WatchList feature gate is disabled")
        encode: Callable[[KubeDict], bytes] = self._encoder.frame if in_protobuf else _line
        content_type = f"{protobuf.MEDIA_TYPE};stream=watch" if in_protobuf else _JSON
        response = web.StreamResponse(headers={"Content-Type": content_type})
        accepts_gzip = "gzip" in seen.headers.get("Accept-Encoding", "")
        compressed = initial and accepts_gzip and self.compresses_watches
        if compressed:
            response.headers["Content-Encoding"] = "gzip"
        response.enable_chunked_encoding()
        await self._watches.serve(
            request,
            response,
            Watcher(kind, selects, encode, initial, compressed),
            version=seen.query.get("resourceVersion", ""),
            seconds=float(seen.query.get("timeoutSeconds", "600")),
        )
        return response


_REVIEWS: dict[str, Callable[[FakeApiServer, KubeDict], KubeDict]] = {
    "/apis/authentication.k8s.io/v1/tokenreviews": FakeApiServer.review_token,
    "/apis/authorization.k8s.io/v1/subjectaccessreviews": FakeApiServer.review_access,
}


def _line(event: KubeDict) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def _refusal(code: int, message: str, reason: str = "") -> web.Response:
    return web.json_response(status_object(code, message, reason), status=code)
