"""The status page at `/` of the metrics port: one HTML document, no build step, nothing loaded from elsewhere.

All data comes as JSON from routes beside it and is put into the page as text, never as markup, under a content
security policy that allows exactly the style and the script below. Names and addresses of Services are shown to
loopback connections only (a shell on the node, `kubectl port-forward`): the port has no authentication, and scraping
metrics must not mean handing out the cluster's inventory.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aiohttp import web

from pointsman.model.addresses import address_from_text, is_loopback, split_host_port
from pointsman.serve.http import Handler, reply, text_response

_FILES: Final = Path(__file__).with_name("page_files")
_LOOPBACK_HINT: Final = (
    "shown to loopback connections only: open this page on the node itself or through kubectl port-forward\n"
)


def page_routes(data: Mapping[str, Handler]) -> dict[str, Handler]:
    """`/` and its data: /status.json for anyone who may read metrics, everything else for loopback."""
    body = _document()
    headers = {
        "Content-Security-Policy": _policy(),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "DENY",
    }

    async def page(_request: web.BaseRequest) -> web.Response:
        return reply(body, "text/html; charset=utf-8", headers=headers)

    guarded = {
        path: _by_address(handler) if path == "/status.json" else _on_loopback(handler)
        for path, handler in data.items()
    }
    return {"/": page, **guarded}


def _part(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _document() -> bytes:
    return (
        _part("page.html")
        .replace("<!-- style -->", f"<style>{_part('page.css')}</style>")
        .replace("<!-- script -->", f"<script>{_part('page.js')}</script>")
        .encode()
    )


def _policy() -> str:
    def hashed(text: str) -> str:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        return f"'sha256-{digest}'"

    return (
        f"default-src 'none'; style-src {hashed(_part('page.css'))}; script-src {hashed(_part('page.js'))}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _by_address(handler: Handler) -> Handler:
    """Only under an IP address or `localhost`: a name that an attacker lets point here must not read anything."""

    async def guarded(request: web.BaseRequest) -> web.StreamResponse:
        host, _ = split_host_port(request.host) or (request.host.removeprefix("[").removesuffix("]"), "")
        if host != "localhost" and address_from_text(host) is None:
            return text_response("open this page by IP address or as localhost\n", 403)
        return await handler(request)

    return guarded


def _on_loopback(handler: Handler) -> Handler:
    async def guarded(request: web.BaseRequest) -> web.StreamResponse:
        name = request.transport.get_extra_info("peername") if request.transport else None
        peer = address_from_text(name[0]) if name else None
        if peer is None or not is_loopback(peer):
            return text_response(_LOOPBACK_HINT, 403)
        return await handler(request)

    return _by_address(guarded)
