"""A fake API server: real HTTP list and watch on loopback, with every way of failing that real ones have.

    async with FakeApiServer() as server:
        server.add(service)                  # seen by open watches
        server.fail_next(500, path="services")
        server.break_watches(partial=b'{"type":"MOD')

`python -m pointsman.testing` runs it alone, for tests of whole processes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, Self

from pointsman.testing import protobuf
from pointsman.testing.apistore import (
    API_VERSIONS,
    CLUSTER_SCOPED,
    PATHS,
    Change,
    Conflict,
    KubeDict,
    Missing,
    Store,
    TooOld,
    UnsupportedField,
    objects_in,
    selector,
    watch_event,
)

try:
    from aiohttp import web
except ModuleNotFoundError as error:
    raise ModuleNotFoundError("the fake API server needs aiohttp: install pointsman[testing]") from error

_JSON = "application/json"
_WRITE_BYTES = 64 * 1024
_KIND_BY_PLURAL = {path.rpartition("/")[2]: kind for kind, path in PATHS.items()}


@dataclass
class Fault:
    """Answers a matching request with an error instead."""

    status: int
    path: str = ""
    times: int = 1
    retry_after: int | None = None
    body: bytes | None = None
    watch: bool | None = None
    """Only watches, only other requests, or both."""
    raw: bytes | None = None
    """The whole answer as it goes over the wire, headers included; the connection is closed after it."""
    hold: bool = False
    """Keep the connection open after the raw answer, and send nothing more."""


@dataclass(frozen=True)
class SeenRequest:
    """What a client asked."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""

    @property
    def is_watch(self) -> bool:
        return self.query.get("watch") in ("true", "1")


@dataclass(eq=False)
class _Watcher:
    """An open watch; None ends it, bytes are sent as they are, an exception resets the connection."""

    kind: str
    selects: Callable[[KubeDict], bool]
    encode: Callable[[KubeDict], bytes]
    content_type: str = _JSON
    initial: bool = False
    queue: asyncio.Queue[bytes | Exception | None] = field(default_factory=asyncio.Queue)

    def send(self, event: KubeDict) -> None:
        self.queue.put_nowait(self.encode(event))


class FakeApiServer:
    """An API server for tests. All attributes may be changed while it runs."""

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str = "",
        tls: ssl.SSLContext | None = None,
        watch_list: bool = True,
        cluster_ip_field: bool = True,
        missing_kinds: frozenset[str] = frozenset(),
        speaks_protobuf: bool = True,
    ) -> None:
        self.store = Store()
        self.token = token
        self.watch_list = watch_list
        self.cluster_ip_field = cluster_ip_field
        self.missing_kinds = missing_kinds
        self.speaks_protobuf = speaks_protobuf
        """To clients that ask for it; without it, those that accept nothing else are refused."""
        self.chunk_size: int | None = None
        """When set, watch events are sent in pieces of this size: slow and cut anywhere."""
        self.requests: list[SeenRequest] = []
        self._encoder = protobuf.Encoder()
        self._faults: list[Fault] = []
        self._watchers: list[_Watcher] = []
        self._pages: dict[str, tuple[list[KubeDict], int]] = {}
        self._tls = tls
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None
        self.store.listeners.append(self._publish)

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
        site = web.TCPSite(self._runner, self._host, self._port, ssl_context=self._tls, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        for watcher in self._watchers:
            watcher.queue.put_nowait(None)
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self._host}:{self._port}"

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
        self._faults.append(Fault(0, raw=answer, **rest))

    def fail_next(self, status: int, **rest: Any) -> None:
        """The next `times` matching requests are answered with this status."""
        self._faults.append(Fault(status, **rest))

    def watch_count(self, kind: str = "") -> int:
        """Open watches, without those that asked for initial events."""
        return sum(not watcher.initial and kind in ("", watcher.kind) for watcher in self._watchers)

    def send_raw(self, kind: str, data: bytes) -> None:
        """Sends bytes to all watches of a kind as they are: garbage, half events, huge events."""
        self._send(kind, data)

    def send_bookmark(self, kind: str) -> None:
        self._send_event(kind, {"type": "BOOKMARK", "object": self._bookmark(kind)})

    def send_error(self, kind: str, code: int, reason: str = "", message: str = "") -> None:
        """Sends an ERROR event and ends the watches of a kind."""
        self._send_event(kind, {"type": "ERROR", "object": _status(code, message, reason)})
        self._send(kind, None)

    def end_watches(self, kind: str = "") -> None:
        """Ends watches as a server does after timeoutSeconds."""
        self._send(kind, None)

    def break_watches(self, kind: str = "", partial: bytes = b"") -> None:
        """Resets the connections of watches, after part of an event if given."""
        if partial:
            self._send(kind, partial)
        self._send(kind, ConnectionResetError())

    def _send(self, kind: str, *items: bytes | Exception | None) -> None:
        for watcher in self._watchers:
            if not kind or watcher.kind == kind:
                for item in items:
                    watcher.queue.put_nowait(item)

    def _send_event(self, kind: str, event: KubeDict) -> None:
        for watcher in self._watchers:
            if watcher.kind == kind:
                watcher.send(event)

    def _publish(self, change: Change) -> None:
        for watcher in self._watchers:
            if watcher.kind == change.kind:
                event = watch_event(change, watcher.selects)
                if event is not None:
                    watcher.send(event)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        seen = SeenRequest(request.method, request.path, dict(request.query), dict(request.headers), body)
        self.requests.append(seen)
        fault = self._fault_for(seen)
        if fault is not None and fault.raw is not None:
            await _send_raw_answer(request, fault.raw, hold=fault.hold)
        if fault is not None:
            headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            data = json.dumps(_status(fault.status, "injected fault")).encode()
            data = data if fault.body is None else fault.body
            return web.Response(
                status=fault.status, body=data, headers=headers, content_type="application/json"
            )
        if self.token and seen.headers.get("Authorization") != f"Bearer {self.token}":
            return _refusal(401, "Unauthorized")
        kind, namespace, name = _resource(request.path)
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

    def _fault_for(self, seen: SeenRequest) -> Fault | None:
        for fault in self._faults:
            if fault.path in seen.path and fault.watch in (None, seen.is_watch):
                fault.times -= 1
                if fault.times <= 0:
                    self._faults.remove(fault)
                return fault
        return None

    def _object(self, seen: SeenRequest, kind: str, namespace: str, name: str) -> web.Response:
        key = f"{namespace}/{name}" if namespace else name
        if seen.method == "GET":
            return web.json_response(self.store.get(kind, key))
        if seen.method == "DELETE":
            self.store.delete(kind, key)
            return web.json_response(_status(200, "deleted"))
        item = json.loads(seen.body)
        item.setdefault("kind", kind)
        if namespace:
            item.setdefault("metadata", {}).setdefault("namespace", namespace)
        if seen.method == "POST":
            return web.json_response(self.store.add(item), status=201)
        if seen.method == "PATCH":
            item = _merged(self.store.get(kind, key), item)
        return web.json_response(self.store.update(item))

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
            watcher = _Watcher(kind, selects, _line)
            if in_protobuf:
                content_type = f"{protobuf.MEDIA_TYPE};stream=watch"
                watcher = _Watcher(kind, selects, self._encoder.frame, content_type)
            return await self._watch(request, seen, watcher)
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

    async def _watch(self, request: web.Request, seen: SeenRequest, watcher: _Watcher) -> web.StreamResponse:
        initial = seen.query.get("sendInitialEvents") == "true"
        if initial and not self.watch_list:
            return _refusal(422, "sendInitialEvents: Forbidden: the WatchList feature gate is disabled")
        watcher.initial = initial
        self._fill(watcher, seen)
        response = web.StreamResponse(headers={"Content-Type": watcher.content_type})
        response.enable_chunked_encoding()
        self._watchers.append(watcher)
        try:
            await response.prepare(request)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(float(seen.query.get("timeoutSeconds", "600"))):
                    await self._deliver(response, watcher)
            await response.write_eof()
        except ConnectionError:
            if request.transport is not None:
                request.transport.abort()
        finally:
            self._watchers.remove(watcher)
        return response

    def _fill(self, watcher: _Watcher, seen: SeenRequest) -> None:
        """Queues what lies between the version asked for and now."""
        version = seen.query.get("resourceVersion", "")
        stored = self.store.objects[watcher.kind]
        if watcher.initial or version in ("", "0"):
            for key in sorted(stored):
                if watcher.selects(stored[key]):
                    watcher.send({"type": "ADDED", "object": stored[key]})
            if watcher.initial:
                bookmark = self._bookmark(watcher.kind)
                bookmark["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
                watcher.send({"type": "BOOKMARK", "object": bookmark})
            return
        try:
            for change in self.store.since(watcher.kind, int(version)):
                event = watch_event(change, watcher.selects)
                if event is not None:
                    watcher.send(event)
        except TooOld as error:
            event = {"type": "ERROR", "object": _status(410, str(error), "Expired")}
            watcher.send(event)
            watcher.queue.put_nowait(None)

    async def _deliver(self, response: web.StreamResponse, watcher: _Watcher) -> None:
        queue = watcher.queue
        while (item := await queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            batch = bytearray(item)
            while len(batch) < _WRITE_BYTES and not queue.empty():
                following = queue.get_nowait()
                if not isinstance(following, bytes):
                    await self._write(response, batch)
                    if following is None:
                        return
                    raise following
                batch += following
            await self._write(response, batch)

    async def _write(self, response: web.StreamResponse, data: bytes | bytearray) -> None:
        size = self.chunk_size or len(data)
        for start in range(0, len(data), size):
            await response.write(bytes(data[start : start + size]))
            if self.chunk_size:
                await asyncio.sleep(0)

    def _bookmark(self, kind: str) -> KubeDict:
        return {
            "kind": kind,
            "apiVersion": API_VERSIONS[kind],
            "metadata": {"resourceVersion": str(self.store.version), "creationTimestamp": None},
        }


async def _send_raw_answer(request: web.Request, answer: bytes, *, hold: bool) -> NoReturn:
    """Bypasses HTTP; ends by cancellation once the connection is closed."""
    if request.transport is not None:
        request.transport.write(answer)
        if not hold:
            request.transport.close()
    await asyncio.Event().wait()
    raise ConnectionResetError


def _resource(path: str) -> tuple[str, str, str]:
    """Kind, namespace and name of a request path; an empty kind when it is unknown."""
    parts = [part for part in path.split("/") if part]
    prefix = parts[:2] if parts[:1] == ["api"] else parts[:3]
    rest = parts[len(prefix) :]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    kind = _KIND_BY_PLURAL.get(rest[0], "") if rest else ""
    if kind and (PATHS[kind].rpartition("/")[0] != "/" + "/".join(prefix)):
        kind = ""
    if kind in CLUSTER_SCOPED and namespace:
        kind = ""
    return kind, namespace, rest[1] if len(rest) > 1 else ""


def _merged(old: Any, patch: Any) -> Any:
    """JSON merge patch."""
    if not isinstance(old, dict) or not isinstance(patch, dict):
        return patch
    result = dict(old)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), value)
    return result


def _line(event: KubeDict) -> bytes:
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"


def _status(code: int, message: str, reason: str = "") -> KubeDict:
    outcome = "Success" if code < 400 else "Failure"
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": outcome,
        "message": message,
        "reason": reason,
        "code": code,
    }


def _refusal(code: int, message: str, reason: str = "") -> web.Response:
    return web.json_response(_status(code, message, reason), status=code)
