"""HTTP handlers of the control socket and the status page, over an Inspector."""

from __future__ import annotations

import asyncio
from typing import TypeVar

import msgspec

from pointsman.explain.target import BadQuestion, Question, target_from_text
from pointsman.node.inspector import Inspector
from pointsman.report.service_list import MAX_ROWS, ListQuery
from pointsman.serve.messages import Handler, Request, Response, reply, text_response

T = TypeVar("T", Question, ListQuery)


def control_routes(inspector: Inspector) -> dict[str, Handler]:
    """What the control socket answers."""

    async def verify(_request: Request) -> Response:
        return _json(await inspector.verify())

    return {
        "/status": status_handler(inspector),
        "/verify": verify,
        "/explain": explain_handler(inspector, kernel=True),
        "/plans": services_handler(inspector),
        "/list": list_handler(inspector),
    }


def page_data_routes(inspector: Inspector) -> dict[str, Handler]:
    """What the status page reads; it never makes the proxy read the kernel."""
    return {
        "/status.json": status_handler(inspector),
        "/services.json": services_handler(inspector),
        "/explain.json": explain_handler(inspector, kernel=False),
    }


def status_handler(inspector: Inspector) -> Handler:
    async def answer(_request: Request) -> Response:
        return _json(await inspector.status())

    return answer


def explain_handler(inspector: Inspector, *, kernel: bool) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            question = _decode(request, Question)
            target = target_from_text(question.target, question.namespace)
            wanted = kernel and question.kernel
            explanation = await inspector.explain(target, question.client, kernel=wanted)
        except (BadQuestion, msgspec.DecodeError) as error:
            return text_response(f"{error}\n", 400)
        return _json(explanation)

    return answer


def services_handler(inspector: Inspector) -> Handler:
    async def answer(request: Request) -> Response:
        query = request.query
        offset, limit = _number(query.get("offset"), 0), _number(query.get("limit"), MAX_ROWS)
        search, sort, reverse = query.get("search", "")[:200], query.get("sort", ""), "reverse" in query
        return _json(await inspector.services(search, offset, limit, sort, reverse=reverse))

    return answer


def list_handler(inspector: Inspector) -> Handler:
    async def answer(request: Request) -> Response:
        try:
            query = _decode(request, ListQuery)
        except msgspec.DecodeError as error:
            return text_response(f"{error}\n", 400)
        listed = await inspector.list(query)
        return await asyncio.to_thread(_json, listed)

    return answer


def _decode(request: Request, kind: type[T]) -> T:
    """Return the query, sent as JSON by commands and as parameters by the page; raises msgspec.DecodeError."""
    if "query" in request.query:
        return msgspec.json.decode(request.query["query"], type=kind)
    return msgspec.convert(dict(request.query), kind, strict=False)


def _number(text: str | None, default: int) -> int:
    usable = text is not None and text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if usable and text is not None else default


def _json(value: object) -> Response:
    return reply(msgspec.json.encode(value), "application/json", headers={"Cache-Control": "no-store"})
