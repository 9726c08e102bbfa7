"""Health check node ports, with real sockets on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from pathlib import Path

import aiohttp
import pytest

from pointsman.serve.service_health import ServiceHealth, ServiceHealthPorts, build_response

RECORDED = sorted((Path(__file__).parent / "health_bodies").glob("*.txt"))


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.stem)
def test_answers_equal_those_recorded_from_kube_proxy(recorded: Path) -> None:
    head, _, body = recorded.read_text().partition("\n\n")
    status, *header_lines = head.splitlines()
    headers = dict(line.split(": ", 1) for line in header_lines)
    said = json.loads(body)
    service = ServiceHealth(said["service"]["namespace"], said["service"]["name"], 1, said["localEndpoints"])
    answer = build_response(service, said["serviceProxyHealthy"])
    assert str(answer.status) == status.split()[1]
    assert answer.body.decode() == body.rstrip("\n")
    assert len(answer.body) == int(headers["Content-Length"])
    assert answer.headers["X-Load-Balancing-Endpoint-Weight"] == headers["X-Load-Balancing-Endpoint-Weight"]


def test_an_unhealthy_proxy_answers_503_whatever_is_local() -> None:
    assert build_response(ServiceHealth("a", "b", 1, 3), proxy_healthy=False).status == 503


async def ask(port: int, path: str = "/", host: str = "127.0.0.1") -> tuple[int, dict[str, str], str]:
    async with aiohttp.ClientSession() as session, session.get(f"http://{host}:{port}{path}") as answer:
        return answer.status, dict(answer.headers), await answer.text()


async def test_any_path_answers_and_counts_follow_without_reopening() -> None:
    port = free_port()
    ports = ServiceHealthPorts("node", lambda: True)
    await ports.sync({"a/b": ServiceHealth("a", "b", port, 2)}, ["127.0.0.1"])
    status, headers, text = await ask(port, "/any/path?x=1")
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Server" not in headers
    assert headers["X-Load-Balancing-Endpoint-Weight"] == "2"
    assert json.loads(text)["localEndpoints"] == 2
    await ports.sync({"a/b": ServiceHealth("a", "b", port, 0)}, ["127.0.0.1"])
    assert (await ask(port))[0] == 503
    await ports.close()
    with pytest.raises(aiohttp.ClientConnectionError):
        await ask(port)


async def test_a_changed_port_moves_and_a_removed_service_closes() -> None:
    first, second = free_port(), free_port()
    ports = ServiceHealthPorts("node", lambda: True)
    await ports.sync({"a/b": ServiceHealth("a", "b", first, 1)}, ["127.0.0.1"])
    await ports.sync({"a/b": ServiceHealth("a", "b", second, 1)}, ["127.0.0.1"])
    assert ports.open_ports == {"a/b": (("127.0.0.1", second),)}
    await ports.sync({}, ["127.0.0.1"])
    assert ports.open_ports == {}
    with pytest.raises(aiohttp.ClientConnectionError):
        await ask(second)


async def test_a_request_in_flight_when_its_service_is_deleted_is_never_answered_200() -> None:
    """Steps of the loop lie between the arrival of a request and its answer; the Service is deleted after each of them."""
    answers: list[bytes] = []
    for steps in range(12):
        port = free_port()
        ports = ServiceHealthPorts("node", lambda: True)
        await ports.sync({"a/b": ServiceHealth("a", "b", port, 2)}, ["127.0.0.1"])
        with socket.socket() as client:
            client.connect(("127.0.0.1", port))
            client.sendall(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n")
            client.setblocking(False)
            for _ in range(steps):
                await asyncio.sleep(0)
            answered_before = b""
            with contextlib.suppress(BlockingIOError):
                answered_before = client.recv(4096)
            await ports.sync({}, ["127.0.0.1"])
            if not answered_before:
                with contextlib.suppress(ConnectionResetError):
                    answers.append(await asyncio.get_running_loop().sock_recv(client, 4096))
    assert answers
    assert not any(answer.startswith(b"HTTP/1.1 200") for answer in answers)


async def test_a_taken_port_is_reported_harms_no_other_service_and_is_tried_again() -> None:
    failures: list[tuple[str, str]] = []
    ports = ServiceHealthPorts("node-1", lambda: True, lambda s, m: failures.append((s.key, m)))
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken, free = holder.getsockname()[1], free_port()
        services = {
            "a/taken": ServiceHealth("a", "taken", taken, 1),
            "a/free": ServiceHealth("a", "free", free, 1),
        }
        await ports.sync(services, ["127.0.0.1"])
        assert [key for key, _ in failures] == ["a/taken"]
        assert f'node node-1 failed to start healthcheck "a/taken" on port {taken}' in failures[0][1]
        assert (await ask(free))[0] == 200
    await ports.sync(services, ["127.0.0.1"])
    assert len(failures) == 1
    assert (await ask(taken))[0] == 200
    await ports.close()


async def test_a_port_that_stays_taken_is_logged_once_until_that_changes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures: list[str] = []
    ports = ServiceHealthPorts("node-1", lambda: True, lambda _s, message: failures.append(message))
    with socket.socket() as holder, socket.socket() as other:
        for sock in (holder, other):
            sock.bind(("127.0.0.1", 0))
            sock.listen()
        taken, elsewhere = (
            {"a/b": ServiceHealth("a", "b", sock.getsockname()[1], 1)} for sock in (holder, other)
        )
        for services, logged in ((taken, 1), (taken, 1), (elsewhere, 2), ({}, 2), (elsewhere, 3)):
            await ports.sync(services, ["127.0.0.1"])
            assert len(caplog.records) == logged
    assert len(failures) == 4
    await ports.sync(taken, ["127.0.0.1"])
    assert list(ports.open_ports) == ["a/b"]
    await ports.close()


async def test_only_the_given_addresses_are_listened_on_and_changes_are_followed() -> None:
    port = free_port()
    ports = ServiceHealthPorts("node", lambda: True)
    services = {"a/b": ServiceHealth("a", "b", port, 1)}
    await ports.sync(services, ["127.0.0.2"])
    assert (await ask(port, host="127.0.0.2"))[0] == 200
    with pytest.raises(aiohttp.ClientConnectionError):
        await ask(port, host="127.0.0.1")
    await ports.sync(services, ["127.0.0.1", "127.0.0.2"])
    assert (await ask(port, host="127.0.0.1"))[0] == 200
    await ports.close()


async def test_one_unusable_address_leaves_no_half_open_port_behind() -> None:
    port = free_port()
    failures: list[str] = []
    ports = ServiceHealthPorts("node", lambda: True, lambda _s, message: failures.append(message))
    await ports.sync({"a/b": ServiceHealth("a", "b", port, 1)}, ["127.0.0.1", "192.0.2.1"])
    assert len(failures) == 1
    assert "192.0.2.1" in failures[0]
    with pytest.raises(aiohttp.ClientConnectionError):
        await ask(port)
    await ports.close()


async def test_overlapping_syncs_do_not_fight_over_a_port() -> None:
    port = free_port()
    failures: list[str] = []
    ports = ServiceHealthPorts("node", lambda: True, lambda _s, message: failures.append(message))
    for count in range(5):
        service = ServiceHealth("a", f"s{count}", port, 1)
        await asyncio.gather(
            ports.sync({service.key: service}, ["127.0.0.1"]),
            ports.sync({service.key: service}, ["127.0.0.1"]),
        )
        assert list(ports.open_ports) == [service.key]
    assert failures == []
    await ports.close()
