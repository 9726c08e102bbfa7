"""Who may read the pages that tell more than metrics: the ports that serve them have no authentication.

A browser on the node can be led to loopback by a web page (DNS rebinding): the connection is then local, but the Host
header holds the attacker's name. So these pages answer under IP addresses and `localhost` only.
"""

from __future__ import annotations

from pointsman.model.addresses import address_from_text, split_host_port
from pointsman.serve.messages import Handler, Request, Response, text_response


def by_address(handler: Handler) -> Handler:
    """Only for requests that name this host by an IP address or as `localhost`."""

    async def guarded(request: Request) -> Response:
        host, _ = split_host_port(request.host) or (request.host.removeprefix("[").removesuffix("]"), "")
        if host != "localhost" and address_from_text(host) is None:
            return text_response("open this page by IP address or as localhost\n", 403)
        return await handler(request)

    return guarded


def on_loopback(handler: Handler) -> Handler:
    """Only for clients on loopback: a shell on the node, or `kubectl port-forward`."""

    async def guarded(request: Request) -> Response:
        if not request.client.is_loopback:
            return text_response(
                "shown to loopback connections only: ask on the node itself or through kubectl port-forward\n",
                403,
            )
        return await handler(request)

    return by_address(guarded)
