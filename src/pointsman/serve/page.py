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

from pointsman.serve.messages import Handler, Request, Response, reply, require_address, require_loopback

_FILES: Final = Path(__file__).with_name("page_files")
_SCRIPTS: Final = ("elements.js", "timeline.js", "services.js", "page.js")
"""In this order they are one script."""


def build_page_routes(data: Mapping[str, Handler]) -> dict[str, Handler]:
    """Return the routes of `/` and its data: /status.json for anyone who may read metrics, everything else for loopback."""
    style, script = _read_file("page.css"), "".join(map(_read_file, _SCRIPTS))
    body = _build_document(style, script)
    headers = {
        "Content-Security-Policy": _build_policy(style, script),
        "Cache-Control": "no-store",
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "DENY",
    }

    async def page(_request: Request) -> Response:
        return reply(body, "text/html; charset=utf-8", headers=headers)

    guarded = {
        path: require_address(handler) if path == "/status.json" else require_loopback(handler)
        for path, handler in data.items()
    }
    return {"/": page, **guarded}


def _read_file(name: str) -> str:
    return (_FILES / name).read_text(encoding="utf-8")


def _build_document(style: str, script: str) -> bytes:
    return (
        _read_file("page.html")
        .replace("<!-- style -->", f"<style>{style}</style>")
        .replace("<!-- script -->", f"<script>{script}</script>")
        .encode()
    )


def _build_policy(style: str, script: str) -> str:
    return (
        f"default-src 'none'; style-src {_build_hash(style)}; script-src {_build_hash(script)}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def _build_hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
