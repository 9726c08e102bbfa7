"""Who may read the metrics port: clients that the API server authenticates and authorizes for the path.

A client shows a certificate or a bearer token; a TokenReview returns the user of the token, a SubjectAccessReview whether that user may
`get` the path. Decisions are cached. While no review is possible, decisions in favour of a client are kept for a short
time, and all other clients are refused. However many requests come, the API server gets a bounded number of reviews, and clients
whose reviews were positive never wait behind unknown ones.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping
from typing import Any, Final, Generic, Protocol, TypeVar

import msgspec

from pointsman.conditions import Condition
from pointsman.errors import KubeError
from pointsman.kube.reviews import User
from pointsman.serve.messages import Client, Handler, Request, Response, reply, text_response
from pointsman.waiting import TokenBucket

ALLOWED_SECONDS: Final = 60.0
"""How long a positive decision holds without another review."""
KEPT_SECONDS: Final = 300.0
"""How long it holds while no review is possible."""
DENIED_SECONDS: Final = 10.0
MAX_DECISIONS: Final = 1024
"""Positive ones, and as many negative ones."""
UNKNOWN_RATE: Final = 5.0
UNKNOWN_BURST: Final = 20
"""Reviews for clients without a positive decision, per second and at once."""
REVIEW_TIMEOUT_SECONDS: Final = 4.0
_RENEWAL_TIMEOUT_SECONDS: Final = 1.0
"""Of a review whose last decision can be kept: a scraper must not run into its own timeout."""
_RETRY_SECONDS: Final = 10.0
_AUTHENTICATED: Final = "system:authenticated"

T = TypeVar("T")
Clock = Callable[[], float]


class Reviews(Protocol):
    """The API server; failures are KubeErrors."""

    async def review_token(self, token: str) -> User | None:
        """Return the user of this token; None when it is not valid."""

    async def review_access(self, user: User, verb: str, path: str) -> bool:
        """Return whether this user may do that."""


class ReviewImpossible(Exception):
    """There is no decision, and none can be had now."""


class TooManyReviews(Exception):
    """Too many unknown clients send requests at once."""


class _Decision(Generic[T]):
    """A decision, and how long it holds without another review."""

    def __init__(self, value: T, now: float, lifetime: float) -> None:
        self.value, self.reviewed_at, self.fresh_until = value, now, now + lifetime


class DecisionCache(Generic[T]):
    """Decisions by key; values that are true are decisions in favour of a client."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._allowed: dict[Hashable, _Decision[T]] = {}
        self._denied: dict[Hashable, _Decision[T]] = {}
        self._running: dict[Hashable, asyncio.Task[T]] = {}
        self._unknown = TokenBucket(UNKNOWN_RATE, UNKNOWN_BURST, clock())
        self.problem = ""
        """Why the last review failed."""

    async def decide(self, key: Hashable, review: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the cached decision or that of a review. Raises ReviewImpossible and TooManyReviews."""
        now = self._clock()
        known = self._allowed.get(key) or self._denied.get(key)
        if known is not None and now < known.fresh_until:
            return known.value
        kept = self._allowed.get(key)
        if kept is not None and now - kept.reviewed_at >= KEPT_SECONDS:
            del self._allowed[key]
            kept = None
        try:
            timeout = REVIEW_TIMEOUT_SECONDS if kept is None else _RENEWAL_TIMEOUT_SECONDS
            async with asyncio.timeout(timeout):
                value = await asyncio.shield(self._review(key, review, is_known=kept is not None))
        except (KubeError, TimeoutError) as error:
            self.problem = str(error) or f"no answer within {timeout:.0f} s"
            if kept is None:
                raise ReviewImpossible(self.problem) from error
            kept.fresh_until = min(now + _RETRY_SECONDS, kept.reviewed_at + KEPT_SECONDS)
            return kept.value
        return value

    def _review(
        self, key: Hashable, review: Callable[[], Coroutine[Any, Any, T]], *, is_known: bool
    ) -> asyncio.Task[T]:
        """Return the review that runs for this key, or start one."""
        running = self._running.get(key)
        if running is not None:
            return running
        if not is_known:
            if self._unknown.wait(self._clock()) > 0:
                raise TooManyReviews
            self._unknown.take(self._clock())

        async def run() -> T:
            try:
                async with asyncio.timeout(REVIEW_TIMEOUT_SECONDS):
                    value = await review()
                self._remember(key, value)
                return value
            finally:
                del self._running[key]

        task = self._running[key] = asyncio.create_task(run(), name="access review")
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    def _remember(self, key: Hashable, value: T) -> None:
        self.problem = ""
        self._allowed.pop(key, None)
        self._denied.pop(key, None)
        decisions, lifetime = (self._allowed, ALLOWED_SECONDS) if value else (self._denied, DENIED_SECONDS)
        decisions[key] = _Decision(value, self._clock(), lifetime)
        while len(decisions) > MAX_DECISIONS:
            del decisions[next(iter(decisions))]


class Authorizer:
    """Guards handlers of a port."""

    def __init__(
        self,
        reviews: Reviews,
        *,
        exempts_loopback: bool,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
    ) -> None:
        self._reviews, self._exempts_loopback, self._wall = reviews, exempts_loopback, wall
        self._users: DecisionCache[User | None] = DecisionCache(clock)
        self._access: DecisionCache[bool] = DecisionCache(clock)

    def guard(self, routes: Mapping[str, Handler]) -> dict[str, Handler]:
        """Return the routes for clients that may use them."""
        return {path: self._guard(path, handler) for path, handler in routes.items()}

    def conditions(self) -> Iterator[Condition]:
        problem = self._users.problem or self._access.problem
        if problem:
            yield Condition.false("AccessReviews", "ReviewFailed", f"clients of the metrics port: {problem}")
        else:
            yield Condition.true("AccessReviews")

    def _guard(self, path: str, handler: Handler) -> Handler:
        async def guarded(request: Request) -> Response:
            if self._exempts_loopback and request.client.is_loopback:
                return await handler(request)
            try:
                refusal = await self._find_refusal(request, path)
            except ReviewImpossible as error:
                return text_response(f"the API server cannot review this client: {error}\n", 503)
            except TooManyReviews:
                return text_response("too many unknown clients: try again later\n", 429)
            return refusal or await handler(request)

        return guarded

    async def _find_refusal(self, request: Request, path: str) -> Response | None:
        user = self._identify(request.client) or await self._find_holder(request.authorization)
        if user is None:
            body = b"Unauthorized: show a client certificate or a bearer token that the API server accepts\n"
            return reply(body, "text/plain; charset=utf-8", 401, {"WWW-Authenticate": "Bearer"})
        verb = "get" if request.method == "HEAD" else request.method.lower()
        review = self._reviews.review_access
        key = hashlib.sha256(msgspec.json.encode((user, verb, path))).digest()
        if await self._access.decide(key, lambda: review(user, verb, path)):
            return None
        return text_response(
            f"Forbidden: {user.username} may not {verb} {path}; a ClusterRole with nonResourceURLs allows it\n",
            403,
        )

    def _identify(self, client: Client) -> User | None:
        """Return the user of the client's certificate."""
        certificate = client.certificate
        if certificate is None or not certificate.user or certificate.expires <= self._wall():
            return None
        return User(certificate.user, (*certificate.groups, _AUTHENTICATED))

    async def _find_holder(self, authorization: str) -> User | None:
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return None
        key = hashlib.sha256(token.encode()).digest()
        return await self._users.decide(key, lambda: self._reviews.review_token(token))
