"""HTTP as the client does it: TLS, tokens, proxies, limits, and errors fit for a log."""

from __future__ import annotations

import asyncio
import errno
import gzip
import logging
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fake.apiserver import FakeApiServer
from tests.fake.certificates import server_tls
from tests.fake.skipping_clock import SkippingClock
from tests.harness.kube_objects import service
from tests.unit.kube.raw_servers import client_to, head_of, listening

from pointsman.errors import Gone, KubeError, Throttled, Unauthorized
from pointsman.http.messages import PIECE_BYTES, ConnectionLost, InvalidHttp, Response, raise_http_errors
from pointsman.kube.access import Access
from pointsman.kube.auth import Credentials
from pointsman.kube.client import ApiClient
from pointsman.kube.exec_plugin import ExecCredential
from pointsman.kube.kubeconfig import load_access

PATH = "/api/v1/services"


async def get(access: Access, times: int = 1, **options: Any) -> Response:
    client = ApiClient(access, environ={}, **options)
    try:
        for _ in range(times):
            response = await client.request("GET", PATH, params={"limit": "5"})
        return response
    finally:
        await client.close()


async def test_lists_come_compressed_unless_the_kubeconfig_says_otherwise() -> None:
    async with FakeApiServer() as server:
        server.add(service("a"))
        access = server.access
        response = await get(access)
        assert response.status == 200
        assert b'"name": "a"' in response.body
        assert response.headers["Content-Encoding"] == "gzip"
        plain = await get(replace(access, disable_compression=True))
        assert plain.body == response.body
        assert "Content-Encoding" not in plain.headers
        assert server.requests[0].headers["User-Agent"].startswith("pointsman/")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, Unauthorized), (403, Unauthorized), (410, Gone), (429, Throttled), (500, KubeError)],
)
async def test_refusals_become_errors_with_the_servers_words(status: int, kind: type[KubeError]) -> None:
    async with FakeApiServer() as server:
        server.fail_next(status, retry_after=7)
        with pytest.raises(KubeError) as caught:
            await get(server.access)
        assert type(caught.value) is kind
        assert caught.value.status == status
        assert f"GET {server.url}{PATH}: HTTP {status}" in str(caught.value)
        assert "injected fault" in str(caught.value)
        if isinstance(caught.value, Throttled):
            assert caught.value.retry_after == 7


async def test_refusal_with_a_body_that_is_no_status_still_says_the_code() -> None:
    async with FakeApiServer() as server:
        server.fail_next(502, body=b"<html>" * 100_000)
        with pytest.raises(KubeError, match=r"HTTP 502 Bad Gateway$"):
            await get(server.access)


async def test_nobody_listening_is_said_plainly() -> None:
    with pytest.raises(KubeError, match=r"cannot connect to 127\.0\.0\.1:1: Connection refused") as caught:
        await get(Access("http://127.0.0.1:1", "test"))
    assert caught.value.status == 0


async def test_redirects_are_not_followed_with_our_credentials() -> None:
    async with FakeApiServer() as server:
        server.fail_next(302)
        with pytest.raises(KubeError, match="HTTP 302 Found"):
            await get(server.access)
        assert len(server.requests) == 1


async def test_server_certificate_is_verified_by_the_given_ca(pki: Path) -> None:
    async with FakeApiServer(tls=server_tls(pki)) as server:
        access = Access(server.url, "test", ca=pki / "ca.crt")
        assert (await get(access)).status == 200
        assert (await get(replace(access, ca=(pki / "ca.crt").read_bytes()))).status == 200
        with pytest.raises(KubeError, match="certificate is not trusted"):
            await get(replace(access, ca=pki / "other.crt"))
        with pytest.raises(KubeError, match="certificate is not trusted"):
            await get(replace(access, ca=None))
        assert (await get(replace(access, ca=None, insecure_skip_tls_verify=True))).status == 200


async def test_a_pod_reaches_the_server_by_another_address_that_its_certificate_names(
    pki: Path, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("pod", encoding="utf-8")
    (tmp_path / "ca.crt").write_bytes((pki / "ca.crt").read_bytes())
    environ = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    async with FakeApiServer(tls=server_tls(pki), token="pod") as server:

        def access(master: str) -> Access:
            return load_access(master=master, environ=environ, service_account=tmp_path)

        assert (await get(access(server.url))).status == 200
        with pytest.raises(KubeError, match=r"must .* name the address it was reached by"):
            await get(access(server.url.replace("127.0.0.1", "localhost")))


async def test_tls_server_name_replaces_the_host_in_verification(pki: Path) -> None:
    async with FakeApiServer(tls=server_tls(pki)) as server:
        access = Access(server.url, "test", ca=pki / "ca.crt", tls_server_name="kubernetes.default")
        assert (await get(access)).status == 200
        with pytest.raises(KubeError, match="not trusted"):
            await get(replace(access, tls_server_name="elsewhere.example"))


async def test_client_certificate_is_presented(pki: Path) -> None:
    async with FakeApiServer(tls=server_tls(pki, demand_client=True)) as server:
        access = Access(server.url, "test", ca=pki / "ca.crt")
        with pytest.raises(KubeError):
            await get(access)
        with_certificate = replace(
            access, client_certificate=pki / "client.crt", client_key=(pki / "client.key").read_bytes()
        )
        assert (await get(with_certificate)).status == 200


async def test_rotated_token_is_used_without_a_restart(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one", encoding="utf-8")
    async with FakeApiServer(token="one") as server:
        client = ApiClient(Access(server.url, "test", token_file=token), environ={})
        assert (await client.request("GET", PATH)).status == 200
        server.token = "two"
        token.write_text("two", encoding="utf-8")
        assert (await client.request("GET", PATH)).status == 200
        await client.close()


async def test_refused_plugin_credentials_are_renewed_once() -> None:
    tokens = iter(("stale", "fresh", "unused"))

    async def plugin(*_: object) -> ExecCredential:
        return ExecCredential(token=next(tokens))

    async with FakeApiServer(token="fresh") as server:
        access = Access(server.url, "test", exec_plugin=object())  # type: ignore[arg-type]
        response = await get(access, credentials=Credentials(access, run=plugin))
        assert response.status == 200
        assert len(server.requests) == 2


async def test_requests_go_through_the_proxy_and_its_password_never_shows() -> None:
    async with FakeApiServer() as server:
        proxy = server.url.replace("http://", "http://joe:hunter2@")
        assert (await get(Access("http://api.invalid", "test", proxy_url=proxy))).status == 200
        assert server.requests[0].headers["Host"] == "api.invalid"
        assert server.requests[0].headers["Proxy-Authorization"].startswith("Basic ")
    with pytest.raises(KubeError) as caught:
        await get(Access("http://api.invalid", "test", proxy_url="http://joe:hunter2@127.0.0.1:1"))
    assert "hunter2" not in str(caught.value)


async def test_requests_beyond_the_burst_wait_for_their_turn() -> None:
    time = SkippingClock()
    async with FakeApiServer() as server:
        await get(server.access, times=5, qps=2, burst=3, clock=time.clock, sleep=time.sleep)
    assert time.pauses == pytest.approx([0.5, 0.5])


async def test_stream_hands_over_what_arrives() -> None:
    async with (
        FakeApiServer() as server,
        client_to(server.access) as client,
        client.stream(PATH, params={"watch": "true"}) as stream,
    ):
        server.send_raw("Service", b"half a")
        assert await stream.read() == b"half a"
        server.send_raw("Service", b" line")
        assert await stream.read() == b" line"
        server.end_watches()
        assert await stream.read() == b""


async def test_a_body_that_stops_arriving_is_given_up(protocol: str) -> None:
    del protocol
    async with FakeApiServer() as server, client_to(server.access) as client:
        server.answer_raw(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{", hold=True)
        with pytest.raises(KubeError, match="no data for 0 s"):
            await client.request("GET", PATH, timeout=0.3)


def test_a_connection_that_the_kernel_gave_up_is_an_error_of_the_connection() -> None:
    """It is a TimeoutError, as our own timeouts are; only one of them says something about the server."""
    error = TimeoutError(errno.ETIMEDOUT, "Connection timed out")
    with pytest.raises(ConnectionLost, match="Connection timed out"), raise_http_errors():
        raise error


async def test_no_credential_is_logged_at_any_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with FakeApiServer(token="hunter2") as server:
            await get(Access(server.url, "test", token="hunter2"))
            with pytest.raises(Unauthorized) as caught:
                await get(Access(server.url, "test", token="hunter3"))
            assert "hunter" not in str(caught.value)
    assert "hunter" not in caplog.text


@pytest.mark.parametrize(
    ("asked", "granted"), [("7", 7), ("86400", 60), ("9" * 400, 60), ("-1", 1), ("soon", 1)]
)
async def test_a_server_that_asks_for_time_gets_a_minute_at_most(asked: str, granted: float) -> None:
    async with FakeApiServer() as server:
        answer = f"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 0\r\nRetry-After: {asked}\r\n\r\n"
        server.answer_raw(answer.encode())
        with pytest.raises(Throttled) as caught:
            await get(server.access)
        assert caught.value.retry_after == granted


async def test_a_stream_that_is_accepted_and_never_answered_is_given_up_early() -> None:
    async with FakeApiServer() as server:
        server.answer_raw(b"", hold=True)
        client = ApiClient(server.access, environ={})
        with pytest.raises(KubeError, match="no response within 0 s"):
            async with client.stream(PATH, headers_timeout=0.2):
                pytest.fail("there was no answer")
        await client.close()


async def test_a_refusal_whose_words_trickle_in_is_given_up_with_those_that_came() -> None:
    async def trickle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b'HTTP/1.1 500 Sorry\r\nContent-Length: 60000\r\n\r\n{"message":"not today"}')
        while True:
            writer.write(b" ")
            await writer.drain()
            await asyncio.sleep(0.02)

    async with (
        listening(trickle) as port,
        client_to(Access(f"http://127.0.0.1:{port}", "test")) as client,
        asyncio.timeout(10),
    ):
        with pytest.raises(KubeError, match="HTTP 500 Sorry: not today"):
            async with client.stream(PATH, headers_timeout=0.2):
                pytest.fail("there was a refusal")


@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
async def test_a_compressed_answer_takes_no_more_memory_than_is_allowed(status: str) -> None:
    bomb = gzip.compress(bytes(100 << 20))
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(bomb)}\r\nContent-Encoding: gzip\r\n\r\n"
    async with FakeApiServer() as server:
        server.answer_raw(head.encode() + bomb)
        client = ApiClient(server.access, environ={}, max_body=1 << 20)
        tracemalloc.start()
        try:
            with pytest.raises(KubeError, match=r"larger than 1 MiB|HTTP 500"):
                await client.request("GET", PATH)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            await client.close()
    assert peak < 8 << 20


async def test_a_stream_that_comes_compressed_although_compression_is_disabled_is_refused() -> None:
    line = gzip.compress(b'{"type":"BOOKMARK","object":{}}\n')
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(line)}\r\nContent-Encoding: gzip\r\n\r\n"
    async with (
        FakeApiServer() as server,
        client_to(replace(server.access, disable_compression=True)) as client,
    ):
        server.answer_raw(head.encode() + line)
        async with client.stream(PATH) as stream:
            with pytest.raises(InvalidHttp, match="Content-Encoding 'gzip' was not requested"):
                await stream.read()


async def test_a_compressed_stream_unpacks_in_pieces_of_bounded_size() -> None:
    bomb = gzip.compress(bytes(100 << 20), 9)
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(bomb)}\r\nContent-Encoding: gzip\r\n\r\n"
    async with FakeApiServer() as server, client_to(server.access) as client:
        server.answer_raw(head.encode() + bomb)
        sizes = []
        async with client.stream(PATH) as stream:
            while piece := await stream.read():
                sizes.append(len(piece))
    assert sum(sizes) == 100 << 20
    assert max(sizes) <= PIECE_BYTES


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_a_long_answer_lets_others_have_their_turn(encoding: str) -> None:
    body = bytes(16 << 20)
    sent = gzip.compress(body, 1) if encoding == "gzip" else body
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(sent)}\r\nContent-Encoding: {encoding}\r\n\r\n"
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with FakeApiServer() as server:
        server.answer_raw(head.encode() + sent)
        running = asyncio.ensure_future(others())
        assert (await get(server.access)).body == body
        running.cancel()
    assert turns > 50


async def test_a_body_in_tiny_chunks_is_handed_on_in_pieces_of_what_came_together() -> None:
    tiny = b"1\r\nx\r\n" * 20_000 + b"0\r\n\r\n"
    async with FakeApiServer() as server, client_to(server.access) as client:
        server.answer_raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + tiny)
        async with client.stream(PATH) as stream:
            pieces = []
            while piece := await stream.read():
                pieces.append(piece)
    assert b"".join(pieces) == b"x" * 20_000
    assert len(pieces) < 20


async def test_gzip_in_several_members_is_one_answer() -> None:
    body = gzip.compress(b'{"a":') + gzip.compress(b"1" * 700_000) + gzip.compress(b"}")
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nContent-Encoding: gzip\r\n\r\n"
    async with FakeApiServer() as server:
        server.answer_raw(head.encode() + body)
        assert (await get(server.access)).body == b'{"a":' + b"1" * 700_000 + b"}"


@pytest.mark.parametrize(
    "access",
    [
        {"token": "one\ntwo"},
        {"impersonation": (("Impersonate-User", "joe\r\nX-Forged: yes"),)},
        {"impersonation": (("Impersonate-User", "joe\ud800"),)},
    ],
    ids=["token", "impersonation", "no Unicode"],
)
async def test_a_credential_that_no_header_can_hold_is_named_and_not_shown(access: dict[str, Any]) -> None:
    async with FakeApiServer() as server:
        with pytest.raises(KubeError, match=r"\(test\): holds a character that no header may hold") as caught:
            await get(Access(server.url, "test", **access))
        assert "joe" not in str(caught.value)
        assert "two" not in str(caught.value)
        assert server.requests == []


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("tls-server-name: elsewhere.example", "certificate is not trusted"),
        ("proxy-url: http://127.0.0.1:1", r"cannot connect to 127\.0\.0\.1:1"),
    ],
)
async def test_a_changed_kubeconfig_changes_the_way_to_the_server(
    pki: Path, tmp_path: Path, field: str, message: str
) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    async with FakeApiServer(http2=server_tls(pki)) as server:

        def write(line: str) -> None:
            cluster = f"server: {server.url}, certificate-authority: {pki / 'ca.crt'}, {line}"
            kubeconfig.write_text(
                f"clusters: [{{name: c, cluster: {{{cluster}}}}}]\ncurrent-context: x\n"
                "contexts: [{name: x, context: {cluster: c}}]\n",
                encoding="utf-8",
            )

        write("tls-server-name: kubernetes.default")
        async with client_to(load_access(str(kubeconfig))) as client:
            assert (await client.request("GET", PATH)).status == 200
            write(field)
            with pytest.raises(KubeError, match=message):
                await client.request("GET", PATH)
