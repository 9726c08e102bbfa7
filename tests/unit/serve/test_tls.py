"""TLS on a served port, with real sockets on loopback: certificates, their rotation, clients with certificates and hostile ones."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fake.certificates import make_certificates, make_client_certificate
from tests.harness.waiting import async_wait_until

from pointsman.serve.connections import Connections, ErrorLog, ServingError
from pointsman.serve.listeners import BindFailed, Listener
from pointsman.serve.messages import Request, Response, route, text_response
from pointsman.serve.tls import ServerTls

BIG = "x" * 3_000_000


async def _whoami(request: Request) -> Response:
    certificate = request.client.certificate
    return text_response(f"{certificate.user} {certificate.groups}" if certificate else "anonymous")


async def _big(_request: Request) -> Response:
    return text_response(BIG)


HANDLER = route({"/whoami": _whoami, "/big": _big})


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("pki")
    make_certificates(directory)
    make_client_certificate(directory, "scraper", "/CN=scraper/O=monitoring/O=readers")
    make_client_certificate(directory, "unknown", "/CN=scraper", ca="other")
    make_client_certificate(directory, "renewed", "/CN=renewed")
    return directory


@pytest.fixture
def pki(authorities: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(authorities, tmp_path / "pki"))


def make_tls(pki: Path, *, client_ca: bool = False) -> ServerTls:
    return ServerTls(pki / "server.crt", pki / "server.key", pki / "ca.crt" if client_ca else None, "n1")


def trusting(pki: Path, client: str = "") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=pki / "ca.crt")
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if client:
        context.load_cert_chain(pki / f"{client}.crt", pki / f"{client}.key")
    return context


@contextlib.asynccontextmanager
async def listening(tls: ServerTls, connections: Connections | None = None) -> AsyncIterator[int]:
    listener = Listener("test server", HANDLER, tls=tls, connections=connections)
    await listener.start("127.0.0.1:0")
    try:
        yield listener.addresses[0][1]
    finally:
        await listener.stop()


async def get(port: int, path: str, context: ssl.SSLContext, name: str = "127.0.0.1") -> str:
    """The body of one response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=name)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    try:
        async with asyncio.timeout(20):
            return (await reader.read()).decode().partition("\r\n\r\n")[2]
    finally:
        writer.close()


async def test_clients_that_trust_the_ca_are_served_however_long_the_response(pki: Path) -> None:
    async with listening(make_tls(pki)) as port:
        assert await get(port, "/whoami", trusting(pki)) == "anonymous"
        assert await get(port, "/big", trusting(pki)) == BIG
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            await get(port, "/whoami", ssl.create_default_context())


async def test_a_self_signed_certificate_is_valid_for_the_name_of_the_node() -> None:
    async with listening(ServerTls(None, None, None, "node-1.example")) as port:
        loop = asyncio.get_running_loop()
        shown = await loop.run_in_executor(None, ssl.get_server_certificate, ("127.0.0.1", port))
        context = ssl.create_default_context(cadata=shown)
        assert await get(port, "/whoami", context, "node-1.example") == "anonymous"
        with pytest.raises(ssl.SSLError, match="Hostname mismatch"):
            await get(port, "/whoami", context, "node-2.example")


async def test_a_client_certificate_identifies_a_user(pki: Path) -> None:
    errors: list[ServingError] = []
    async with listening(make_tls(pki, client_ca=True), Connections(ErrorLog(errors.append))) as port:
        assert await get(port, "/whoami", trusting(pki, "scraper")) == "scraper ('monitoring', 'readers')"
        assert await get(port, "/whoami", trusting(pki)) == "anonymous"
        assert errors == []
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await get(port, "/whoami", trusting(pki, "unknown"))
        assert errors == [ServingError.MALFORMED]


async def test_a_replaced_certificate_is_served_to_new_connections_and_old_ones_end(pki: Path) -> None:
    tls = make_tls(pki)
    async with listening(tls) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(pki))
        request = b"GET /whoami HTTP/1.1\r\nHost: x\r\n\r\n"
        writer.write(request)
        assert b"Connection: close" not in await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(len("anonymous"))

        shutil.copy(pki / "renewed.crt", pki / "server.crt")
        assert [one.is_true for one in tls.conditions()] == [False]
        assert await get(port, "/whoami", trusting(pki)) == "anonymous"
        shutil.copy(pki / "renewed.key", pki / "server.key")
        assert [one.is_true for one in tls.conditions()] == [True]
        context = trusting(pki)
        context.check_hostname = False
        assert await get(port, "/whoami", context) == "anonymous"
        with pytest.raises(ssl.SSLError, match=r"not valid for|mismatch"):
            await get(port, "/whoami", trusting(pki))

        writer.write(request)
        assert b"Connection: close" in await reader.read()
        writer.close()


@pytest.mark.parametrize("broken", ["server.crt", "server.key", "ca.crt"])
async def test_unusable_files_leave_the_last_certificate_and_raise_a_condition(
    pki: Path, authorities: Path, broken: str
) -> None:
    tls = make_tls(pki, client_ca=True)
    async with listening(tls) as port:
        (pki / broken).write_text("rubbish")
        assert await get(port, "/whoami", trusting(authorities, "scraper")) != "anonymous"
        (condition,) = tls.conditions()
        assert condition.reason == "Unusable"
        assert str(pki / broken) in condition.message
        assert "rubbish" not in condition.message
        shutil.copy(authorities / broken, pki / broken)
        assert [one.is_true for one in tls.conditions()] == [True]


async def test_a_port_without_a_usable_certificate_opens_once_there_is_one(pki: Path) -> None:
    (pki / "server.key").rename(pki / "later")
    failures: list[str] = []

    async def note(failure: BindFailed) -> None:
        failures.append(str(failure))

    listener = Listener("test server", HANDLER, tls=make_tls(pki), on_bind_failure=note, retry_seconds=0.01)
    await listener.start("127.0.0.1:0")
    assert f"--tls-private-key-file {pki / 'server.key'}: No such file" in failures[0]
    (pki / "later").rename(pki / "server.key")
    await async_wait_until(lambda: listener.addresses)
    assert await get(listener.addresses[0][1], "/whoami", trusting(pki)) == "anonymous"
    await listener.stop()


async def test_plain_http_is_told_what_the_port_speaks(pki: Path) -> None:
    async with listening(make_tls(pki)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        received = await reader.read()
        assert received.endswith(b"This port speaks HTTPS.\n")
        assert b"HTTP/1.0 400" in received
        writer.close()


async def test_a_client_that_only_connects_is_no_error(pki: Path) -> None:
    errors: list[ServingError] = []
    async with listening(make_tls(pki), Connections(ErrorLog(errors.append))) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write_eof()
        assert await reader.read() == b""
        writer.close()
    assert errors == []


async def test_older_protocols_are_refused(pki: Path) -> None:
    context = trusting(pki)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with listening(make_tls(pki)) as port:
        with pytest.raises(ssl.SSLError, match=r"PROTOCOL_VERSION|protocol version"):
            await get(port, "/whoami", context)


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01\x02\x00"])
async def test_a_client_that_never_ends_its_handshake_is_closed(pki: Path, sent: bytes) -> None:
    async with listening(make_tls(pki), Connections(idle_seconds=0.05)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()
