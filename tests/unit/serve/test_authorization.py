"""Who may read the metrics port: decisions, how long they hold, and how many reviews they cost at most."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.fake.apiserver import FakeApiServer

from pointsman.errors import KubeError
from pointsman.kube.client import ApiClient
from pointsman.kube.reviews import ApiReviews, User
from pointsman.model.addresses import address_from_text
from pointsman.serve.authorization import (
    ALLOWED_SECONDS,
    DENIED_SECONDS,
    KEPT_SECONDS,
    MAX_DECISIONS,
    UNKNOWN_BURST,
    UNKNOWN_RATE,
    Authorizer,
)
from pointsman.serve.messages import Client, ClientCertificate, Query, Request, Response, text_response

REMOTE = Client("192.0.2.7", address_from_text("192.0.2.7"))
LOOPBACK = Client("127.0.0.1", address_from_text("127.0.0.1"), is_local=True)
SCRAPER = User("system:serviceaccount:monitoring:prometheus", ("system:authenticated",))


class FakeReviews:
    """Answers from tables; raises `failure` while there is one."""

    def __init__(self) -> None:
        self.tokens: dict[str, User] = {"good": SCRAPER}
        self.allowed = {(SCRAPER.username, "get", "/metrics")}
        self.failure: Exception | None = None
        self.hangs = False
        self.token_reviews: list[str] = []
        self.access_reviews: list[tuple[str, tuple[str, ...], str, str]] = []

    async def review_token(self, token: str) -> User | None:
        self.token_reviews.append(token)
        await self._fail()
        return self.tokens.get(token)

    async def review_access(self, user: User, verb: str, path: str) -> bool:
        self.access_reviews.append((user.username, user.groups, verb, path))
        await self._fail()
        return (user.username, verb, path) in self.allowed

    async def _fail(self) -> None:
        await asyncio.sleep(0)
        if self.hangs:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure


class Port:
    """A guarded port with two paths, and the clock of its decisions."""

    def __init__(self, *, exempts_loopback: bool = False) -> None:
        self.now = 1000.0
        self.reviews = FakeReviews()
        self.authorizer = Authorizer(
            self.reviews,
            exempts_loopback=exempts_loopback,
            clock=lambda: self.now,
            wall=lambda: 5_000_000 + self.now,
        )
        self._routes = self.authorizer.guard({"/metrics": _secret, "/configz": _secret})

    async def ask(
        self, token: str = "", *, path: str = "/metrics", client: Client = REMOTE, method: str = "GET"
    ) -> Response:
        header = f"Bearer {token}" if token else ""
        return await self._routes[path](Request(method, path, Query(""), "", b"", client, header))

    async def status(self, token: str = "", **rest: object) -> int:
        return (await self.ask(token, **rest)).status  # type: ignore[arg-type]

    @property
    def failing(self) -> list[str]:
        return [one.message for one in self.authorizer.conditions() if one.is_failing]


async def _secret(_request: Request) -> Response:
    return text_response("secret")


async def test_a_user_with_the_right_gets_the_page_and_nobody_else_does() -> None:
    port = Port()
    answer = await port.ask("good")
    assert (answer.status, answer.body) == (200, b"secret")
    assert await port.status("good", method="HEAD") == 200
    refused = await port.ask("bad")
    assert refused.status == 401
    assert refused.headers["WWW-Authenticate"] == "Bearer"
    assert await port.status() == 401
    denied = await port.ask("good", path="/configz")
    assert denied.status == 403
    assert b"system:serviceaccount:monitoring:prometheus may not get /configz" in denied.body
    assert await port.status("good", method="PUT") == 403
    assert b"secret" not in refused.body + denied.body


@pytest.mark.parametrize("header", ["good", "Basic good", "Bearer", "Bearer ", "", "Digest Bearer good"])
async def test_other_schemes_are_no_bearer_tokens(header: str) -> None:
    port = Port()
    routes = port.authorizer.guard({"/metrics": _secret})
    answer = await routes["/metrics"](Request("GET", "/metrics", Query(""), "", b"", REMOTE, header))
    assert answer.status == 401
    assert port.reviews.token_reviews == []


async def test_loopback_is_exempt_only_where_configured() -> None:
    assert await Port(exempts_loopback=True).status(client=LOOPBACK) == 200
    assert await Port(exempts_loopback=True).status(client=REMOTE) == 401
    assert await Port().status(client=LOOPBACK) == 401


async def test_a_certificate_names_user_and_groups_until_it_expires() -> None:
    port = Port()
    port.reviews.allowed.add(("scraper", "get", "/metrics"))
    certificate = ClientCertificate("scraper", ("monitoring",), 5_000_000 + port.now + 10)
    client = msgspec.structs.replace(REMOTE, certificate=certificate)
    assert await port.status(client=client) == 200
    assert port.reviews.access_reviews == [
        ("scraper", ("monitoring", "system:authenticated"), "get", "/metrics")
    ]
    port.now += 10
    assert await port.status(client=client) == 401
    assert await port.status("good", client=client) == 200
    nameless = msgspec.structs.replace(REMOTE, certificate=ClientCertificate("", ("monitoring",), 9e9))
    assert await port.status(client=nameless) == 401


async def test_decisions_are_reviewed_again_when_they_are_old() -> None:
    port = Port()
    for _ in range(3):
        assert await port.status("good") == 200
    assert len(port.reviews.token_reviews) == len(port.reviews.access_reviews) == 1
    port.now += ALLOWED_SECONDS
    port.reviews.allowed.clear()
    assert await port.status("good") == 403
    port.reviews.allowed.add((SCRAPER.username, "get", "/metrics"))
    assert await port.status("good") == 403
    port.now += DENIED_SECONDS
    assert await port.status("good") == 200
    port.now += ALLOWED_SECONDS
    port.reviews.tokens.clear()
    assert await port.status("good") == 401


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.virtual_time
async def test_without_an_api_server_known_clients_are_kept_for_a_while(hangs: bool) -> None:
    port = Port()
    assert await port.status("good") == 200
    assert port.failing == []
    port.reviews.hangs, port.reviews.failure = hangs, KubeError("connection refused")
    port.now += ALLOWED_SECONDS
    assert await port.status("good") == 200
    assert await port.status("unknown") == 503
    assert len(port.failing) == 1
    port.now += KEPT_SECONDS - ALLOWED_SECONDS - 1
    assert await port.status("good") == 200
    port.now += 1
    assert await port.status("good") == 503
    port.reviews.hangs, port.reviews.failure = False, None
    await asyncio.sleep(10)  # reviews that hang end
    assert await port.status("good") == 200
    assert port.failing == []


async def test_a_failed_renewal_is_not_repeated_at_every_request() -> None:
    port = Port()
    await port.ask("good")
    port.now += ALLOWED_SECONDS
    port.reviews.failure = KubeError("connection refused")
    for _ in range(5):
        assert await port.status("good") == 200
    assert len(port.reviews.token_reviews) == 2


async def test_unknown_tokens_cost_a_bounded_number_of_reviews_and_keep_no_known_client_out() -> None:
    port = Port()
    assert await port.status("good") == 200
    port.now += ALLOWED_SECONDS
    statuses = [await port.status(f"guess {number}") for number in range(500)]
    assert statuses.count(401) == UNKNOWN_BURST
    assert statuses.count(429) == 500 - UNKNOWN_BURST
    assert await port.status("good") == 200
    port.now += 1
    assert [await port.status(f"more {n}") for n in range(20)].count(401) == UNKNOWN_RATE


async def test_positive_decisions_beyond_the_limit_replace_the_oldest() -> None:
    port = Port()
    tokens = [f"token {number}" for number in range(MAX_DECISIONS + 1)]
    port.reviews.tokens = dict.fromkeys(tokens, SCRAPER)
    for token in tokens:
        assert await port.status(token) == 200
        port.now += 1 / UNKNOWN_RATE
    port.reviews.token_reviews.clear()
    port.now -= len(tokens) / UNKNOWN_RATE - 1
    assert await port.status(tokens[-1]) == 200
    assert port.reviews.token_reviews == []
    assert await port.status(tokens[0]) == 200
    assert port.reviews.token_reviews == [tokens[0]]


async def test_requests_at_the_same_time_share_one_review() -> None:
    port = Port()
    assert await asyncio.gather(*(port.status("good") for _ in range(50))) == [200] * 50
    assert len(port.reviews.token_reviews) == len(port.reviews.access_reviews) == 1


@pytest.mark.parametrize(
    ("meant_for", "wanted", "accepted"),
    [
        (["api"], (), True),
        (["vault"], (), False),
        (["api"], ("pointsman",), False),
        (["pointsman", "vault"], ("pointsman",), True),
    ],
)
async def test_a_token_for_another_audience_is_not_accepted(
    meant_for: list[str], wanted: tuple[str, ...], accepted: bool
) -> None:
    async with FakeApiServer() as server:
        server.users["t"] = {"username": "u", "groups": ["g"], "uid": "7", "audiences": meant_for}
        client = ApiClient(server.access)
        user = await ApiReviews(client, wanted).review_token("t")
        assert user == (User("u", ("g",), "7") if accepted else None)
        await client.close()


async def test_a_server_that_ignores_audiences_is_not_believed() -> None:
    async with FakeApiServer() as server:
        body = b'{"status":{"authenticated":true,"user":{"username":"u"}}}'
        head = b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        server.answer_raw(head % len(body) + body, path="tokenreviews")
        client = ApiClient(server.access)
        assert await ApiReviews(client, ("pointsman",)).review_token("t") is None
        await client.close()


async def test_access_reviews_name_user_verb_and_path() -> None:
    async with FakeApiServer() as server:
        server.permissions.add(("u", "get", "/metrics"))
        client = ApiClient(server.access)
        reviews = ApiReviews(client)
        user = User("u", ("g",), "7", {"scopes": ("a", "b")})
        assert await reviews.review_access(user, "get", "/metrics")
        assert not await reviews.review_access(user, "get", "/configz")
        spec = msgspec.json.decode(server.requests[0].body)["spec"]
        assert spec == {
            "user": "u",
            "groups": ["g"],
            "uid": "7",
            "extra": {"scopes": ["a", "b"]},
            "nonResourceAttributes": {"verb": "get", "path": "/metrics"},
        }
        server.fail_next(403, path="subjectaccessreviews")
        with pytest.raises(KubeError, match="HTTP 403"):
            await reviews.review_access(user, "get", "/metrics")
        await client.close()
