"""HTTP handlers of the control socket and the status page, over an Inspector."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

import msgspec

from pointsman.explain.service_port import Explanation
from pointsman.explain.target import BadQuestion, Question, parse_target
from pointsman.node.inspector import Inspector
from pointsman.report.history import HistoryQuery, HistoryReport
from pointsman.report.samples import ServiceTraffic
from pointsman.report.service_list import MAX_ROWS, ListQuery, ServicePage
from pointsman.serve.messages import Handler, Request, Response, reply, text_response

T = TypeVar("T", Question, ListQuery, HistoryQuery)


def build_control_routes(inspector: Inspector) -> dict[str, Handler]:
    """Return the handlers of the control socket."""
    return {
        "/status": _answer_with(lambda _request: inspector.status()),
        "/verify": _answer_with(lambda _request: inspector.verify()),
        "/explain": _answer_with(partial(_explain, inspector, kernel=True)),
        "/list": _answer_with(lambda request: inspector.list(_decode(request, ListQuery))),
        "/events": _answer_with(partial(_list_events, inspector)),
    }


def build_page_data_routes(inspector: Inspector) -> dict[str, Handler]:
    """Return the handlers for the status page, which reads of the kernel only samples of the traffic."""

    async def find_traffic(request: Request) -> ServiceTraffic:
        return inspector.traffic(request.query.get("service", ""))

    return {
        "/status.json": _answer_with(lambda _request: inspector.status(count=False)),
        "/services.json": _answer_with(partial(_list_services, inspector)),
        "/explain.json": _answer_with(partial(_explain, inspector, kernel=False)),
        "/events.json": _answer_with(partial(_list_events, inspector)),
        "/traffic.json": _answer_with(find_traffic),
    }


async def _list_services(inspector: Inspector, request: Request) -> ServicePage:
    query = request.query
    offset, limit = _parse_number(query.get("offset"), 0), _parse_number(query.get("limit"), MAX_ROWS)
    search, sort, reverse = query.get("search", "")[:200], query.get("sort", ""), "reverse" in query
    return await inspector.services(search, offset, limit, sort, reverse=reverse)


async def _explain(inspector: Inspector, request: Request, *, kernel: bool) -> Explanation:
    question = _decode(request, Question)
    target = parse_target(question.target, question.namespace)
    return await inspector.explain(target, question.client, kernel=kernel and question.kernel)


async def _list_events(inspector: Inspector, request: Request) -> HistoryReport:
    return inspector.history(_decode(request, HistoryQuery))


def _answer_with(find: Callable[[Request], Awaitable[msgspec.Struct | bytes]]) -> Handler:
    """Answer with JSON, made on a thread because it may be large, or with 400 for a bad question; bytes are gzip of JSON."""

    async def answer(request: Request) -> Response:
        try:
            found = await find(request)
        except (BadQuestion, msgspec.DecodeError) as error:
            return text_response(f"{error}\n", 400)
        headers = {"Cache-Control": "no-store"}
        if isinstance(found, bytes):
            return reply(found, "application/json", headers={**headers, "Content-Encoding": "gzip"})
        body = await asyncio.to_thread(msgspec.json.encode, found)
        return reply(body, "application/json", headers=headers)

    return answer


def _decode(request: Request, kind: type[T]) -> T:
    """Return the query, sent as JSON by commands and as parameters by the page; raises msgspec.DecodeError."""
    if "query" in request.query:
        return msgspec.json.decode(request.query["query"], type=kind)
    return msgspec.convert(dict(request.query), kind, strict=False)


def _parse_number(text: str | None, default: int) -> int:
    usable = text is not None and text.isascii() and text.isdigit() and len(text) < 10
    return int(text) if usable and text is not None else default
