"""Connections to the API server: opened, led through proxies, and read in whatever pieces they bring."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fake.apiserver import FakeApiServer
from tests.fake.certificates import server_tls
from tests.unit.kube.raw_servers import Answering, client_to, head_of, listening

from pointsman.errors import KubeError
from pointsman.kube.access import Access
from pointsman.kube.client import ApiClient

PATH = "/api/v1/services"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


async def test_each_request_has_a_connection_of_its_own() -> None:
    """A balancer can lead each to another API server."""
    connections, requests = 0, 0

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections, requests
        connections += 1
        while True:
            await head_of(reader)
            requests += 1
            writer.write(OK)

    async with (
        listening(answering) as port,
        client_to(Access(f"http://127.0.0.1:{port}", "test")) as client,
    ):
        for _ in range(3):
            assert (await client.request("GET", PATH)).body == b"{}"
    assert (connections, requests) == (3, 3)


async def test_requests_at_the_same_time_have_connections_of_their_own() -> None:
    both = asyncio.Event()
    waiting = 0

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal waiting
        await head_of(reader)
        waiting += 1
        if waiting == 2:
            both.set()
        await both.wait()
        writer.write(OK)

    async with (
        listening(answering) as port,
        client_to(Access(f"http://127.0.0.1:{port}", "test")) as client,
    ):
        answers = await asyncio.gather(*(client.request("GET", PATH) for _ in range(2)))
    assert [answer.body for answer in answers] == [b"{}", b"{}"]


@pytest.mark.parametrize("pause", [0.0, 0.05], ids=["at once", "later"])
async def test_an_answer_that_nobody_asked_for_is_not_taken_as_that_of_the_next_request(pause: float) -> None:
    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            asked = (await head_of(reader)).split()[1]
            answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(asked), asked)
            writer.write(answer if pause else answer * 2)
            await asyncio.sleep(pause)
            if pause:
                writer.write(answer)

    async with (
        listening(answering) as port,
        client_to(Access(f"http://127.0.0.1:{port}", "test")) as client,
    ):
        for path in ("/a", "/b", "/c"):
            assert (await client.request("GET", path)).body == path.encode()
            await asyncio.sleep(pause * 2)


async def test_a_balancer_that_gives_up_an_idle_connection_with_a_word_refuses_no_request() -> None:
    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(OK)
        await asyncio.sleep(0.01)
        writer.write(b"HTTP/1.1 408 Request Time-out\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    async with (
        listening(answering) as port,
        client_to(Access(f"http://127.0.0.1:{port}", "test")) as client,
    ):
        for _ in range(3):
            assert (await client.request("POST", PATH, body=b"{}")).status == 200
            await asyncio.sleep(0.05)


async def test_closing_the_transport_ends_a_stream_that_is_open() -> None:
    ended = asyncio.Event()

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.read()
        ended.set()

    async with listening(answering) as port:
        client = ApiClient(Access(f"http://127.0.0.1:{port}", "test"), environ={})
        async with client.stream(PATH):
            await client.close()
            await asyncio.wait_for(ended.wait(), 5)


async def test_the_path_the_prefix_and_the_parameters_are_written_so_that_a_server_reads_them_back() -> None:
    async with FakeApiServer() as server:
        async with client_to(Access(f"{server.url}/", "test")) as client:
            with pytest.raises(KubeError, match="HTTP 404"):
                await client.request(
                    "GET", "/k8s/a b/ü%2f", params={"labelSelector": "!a,b in (c d)", "continue": "x+/="}
                )
        seen = server.requests[0]
        assert seen.path == "/k8s/a b/ü%2f"
        assert seen.query == {"labelSelector": "!a,b in (c d)", "continue": "x+/="}


@given(
    chunks=st.lists(st.binary(min_size=1, max_size=50), max_size=5),
    cuts=st.lists(st.integers(min_value=1, max_value=60), max_size=12),
)
def test_an_answer_is_the_same_in_whatever_pieces_it_arrives(chunks: list[bytes], cuts: list[int]) -> None:
    parts = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    wire = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + parts + b"0\r\n\r\n"

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head_of(reader)
        rest = wire
        for cut in cuts:
            writer.write(rest[:cut])
            rest = rest[cut:]
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(rest)

    async def received() -> bytes:
        async with listening(answering) as port:
            access = Access(f"http://127.0.0.1:{port}", "test")
            async with client_to(access) as client:
                return (await client.request("GET", PATH)).body

    assert asyncio.run(received()) == b"".join(chunks)


def tunnelling(asked: list[bytes], refusal: bytes = b"") -> Answering:
    """A proxy that connects its client with whatever it names, or refuses."""

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await head_of(reader)
        asked.append(head)
        if refusal:
            writer.write(refusal)
            return
        host, _, port = head.split()[1].decode().rpartition(":")
        inner_reader, inner_writer = await asyncio.open_connection(host, int(port))
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await asyncio.gather(pour(reader, inner_writer), pour(inner_reader, writer), return_exceptions=True)

    return answering


async def test_tls_goes_through_a_proxy_to_the_server_itself(pki: Path) -> None:
    asked: list[bytes] = []
    async with (
        FakeApiServer(tls=server_tls(pki)) as server,
        listening(tunnelling(asked)) as port,
        client_to(
            Access(
                server.url,
                "test",
                ca=pki / "ca.crt",
                token="secret",
                proxy_url=f"http://joe:hunter2@127.0.0.1:{port}",
            )
        ) as client,
    ):
        assert (await client.request("GET", PATH)).status == 200
        assert server.requests[0].headers["Authorization"] == "Bearer secret"
        assert "Proxy-Authorization" not in server.requests[0].headers
    assert b"Proxy-Authorization: Basic am9lOmh1bnRlcjI=\r\n" in asked[0]
    assert b"secret" not in asked[0]


@pytest.mark.parametrize(
    ("refusal", "words"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n", "HTTP 407"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 502 Bad Gateway\r\n\r\n", "HTTP 502"),
        (b"HTTP/1.1 2", "the connection was closed without a response"),
        (b"SSH-2.0-OpenSSH_9.9\r\n\r\n", "not valid HTTP"),
    ],
)
async def test_a_proxy_that_refuses_is_told_from_a_server_that_does(
    pki: Path, refusal: bytes, words: str
) -> None:
    asked: list[bytes] = []
    async with (
        listening(tunnelling(asked, refusal)) as port,
        client_to(
            Access(
                "https://api.invalid",
                "test",
                ca=pki / "ca.crt",
                proxy_url=f"http://joe:hunter2@127.0.0.1:{port}",
            )
        ) as client,
    ):
        with pytest.raises(KubeError, match=rf"proxy 127\.0\.0\.1:{port}: {words}") as caught:
            await client.request("GET", PATH)
    assert "hunter2" not in str(caught.value)
    assert asked[0].startswith(b"CONNECT api.invalid:443 HTTP/1.1\r\n")


async def test_a_server_that_the_proxy_leads_to_must_show_its_certificate(pki: Path) -> None:
    async with (
        FakeApiServer(tls=server_tls(pki)) as server,
        listening(tunnelling([])) as port,
        client_to(
            Access(server.url, "test", ca=pki / "other.crt", proxy_url=f"http://127.0.0.1:{port}")
        ) as client,
    ):
        with pytest.raises(KubeError, match="certificate is not trusted"):
            await client.request("GET", PATH)


async def test_new_credentials_mean_a_new_connection(pki: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "client.crt", tmp_path / "client.key"
    certificate.write_bytes((pki / "client.crt").read_bytes())
    key.write_bytes((pki / "client.key").read_bytes())
    async with (
        FakeApiServer(tls=server_tls(pki, demand_client=True)) as server,
        client_to(
            Access(server.url, "test", ca=pki / "ca.crt", client_certificate=certificate, client_key=key)
        ) as client,
    ):
        for _ in range(2):
            assert (await client.request("GET", PATH)).status == 200
        certificate.write_bytes((pki / "other.crt").read_bytes())
        key.write_bytes((pki / "other.key").read_bytes())
        with pytest.raises(KubeError):
            await client.request("GET", PATH)


@pytest.mark.parametrize(
    "proxy", ["http://joe:hunter2@host:port", "http://[::1", "socks5://joe:hunter2@127.0.0.1:1080", "http://"]
)
async def test_a_proxy_address_that_leads_nowhere_is_said_with_the_request_and_not_shown(proxy: str) -> None:
    client = ApiClient(Access("https://192.0.2.1", "test"), environ={"HTTPS_PROXY": proxy})
    with pytest.raises(KubeError, match="the address of the proxy") as caught:
        await client.request("GET", PATH)
    await client.close()
    assert "hunter2" not in str(caught.value)


async def test_a_server_without_tls_behind_an_https_address_is_not_called_a_lack_of_permission() -> None:
    async with FakeApiServer() as server:
        access = Access(server.url.replace("http:", "https:"), "test", insecure_skip_tls_verify=True)
        async with client_to(access) as client:
            with pytest.raises(KubeError, match=r"cannot connect to 127\.0\.0\.1:\d+: .*SSL"):
                await client.request("GET", PATH)


async def test_blanks_around_a_token_are_not_part_of_it_and_never_show_it() -> None:
    async with (
        FakeApiServer(token="hunter2") as server,
        client_to(Access(server.url, "test", token="hunter2 ")) as client,
    ):
        assert (await client.request("GET", PATH)).status == 200


async def test_what_no_request_may_hold_is_refused_without_being_shown() -> None:
    async with FakeApiServer() as server:
        impersonation = (("Impersonate User: hunter2", "x"),)
        async with client_to(Access(server.url, "test", impersonation=impersonation)) as client:
            with pytest.raises(KubeError, match="invalid request header") as caught:
                await client.request("GET", PATH)
    assert "hunter2" not in str(caught.value)
