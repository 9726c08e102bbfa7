"""The control socket, on which `pointsman status`, `explain` and `verify` query the running proxy.

HTTP with JSON over a Unix socket that only root and the proxy's own user may use: its file mode allows no others, and every
connection's credentials are checked as well. A new process takes the place of an old one's socket atomically, so
neither a crash nor an overlapping restart leaves a dead or a missing one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pointsman.obs.log import get_log
from pointsman.serve.connections import Connections
from pointsman.serve.messages import Handler, Request, Response, route, text_response, with_deadline
from pointsman.serve.server import HttpServer

REQUEST_TIMEOUT_SECONDS: Final = 120.0
"""Reading a large kernel table takes long, and an operator waits for it."""

_BACKLOG: Final = 16

_log = get_log(__name__)


class ControlServer:
    """Serves routes on a Unix socket; one that cannot be opened is logged and never fatal."""

    def __init__(
        self, path: Path, routes: Mapping[str, Handler], connections: Connections | None = None
    ) -> None:
        self.path = path
        self._connections = Connections() if connections is None else connections
        self._handler = with_deadline(_require_root(route(routes)), REQUEST_TIMEOUT_SECONDS)
        self._server: HttpServer | None = None
        self._inode = 0

    async def start(self) -> bool:
        """Listen; return False when the socket cannot be opened, which is logged."""
        try:
            sock = _bind(self.path)
        except OSError as error:
            _log.warning(
                "Cannot open the control socket; status, explain and verify will not reach this proxy",
                path=str(self.path),
                err=error.strerror or str(error),
            )
            return False
        self._inode = self.path.stat().st_ino
        self._server = HttpServer(self._handler, self._connections)
        self._server.serve([sock])
        return True

    async def stop(self) -> None:
        """Stop listening and remove the socket, unless another process has put its own there."""
        if self._server is None:
            return
        await self._server.close()
        self._server = None
        try:
            if self.path.stat().st_ino == self._inode:
                self.path.unlink()
        except OSError:
            _log.info("Control socket already removed", path=str(self.path))


def _bind(path: Path) -> socket.socket:
    """Return a listening socket at `path`, atomically replacing the one that is there."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # No client can connect between bind and chmod: connecting needs listen, which comes last.
        sock.bind(str(temporary))
        temporary.chmod(0o600)
        sock.listen(_BACKLOG)
        sock.setblocking(False)
        temporary.replace(path)
    except OSError:
        sock.close()
        temporary.unlink(missing_ok=True)
        raise
    return sock


def _require_root(handler: Handler) -> Handler:
    """Answer root and the proxy's own user only."""

    async def guarded(request: Request) -> Response:
        user = request.client.user
        if user not in (0, os.geteuid()):
            return text_response(f"user {user} may not query this proxy; use sudo\n", 403)
        return await handler(request)

    return guarded
