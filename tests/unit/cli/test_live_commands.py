"""status, explain and verify against a running proxy, through its socket."""

from __future__ import annotations

import io
import json
import os
import socket
import stat
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import factory
from tests.unit.cli.live_proxy import LiveProxy, live_proxy

from pointsman.cli.main import main
from pointsman.conditions import Blocks, Condition
from pointsman.errors import KernelError
from pointsman.report.status import ReloadReport

NODE = factory.node("n1", addresses=[{"type": "InternalIP", "address": "192.168.1.10"}])


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[LiveProxy]:
    with live_proxy(
        tmp_path,
        NODE,
        factory.service(),
        factory.endpoint_slice("10.244.1.5"),
        factory.service("headless", clusterIP="None"),
    ) as running:
        yield running


def output(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    status = main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_status_of_a_healthy_proxy(proxy: LiveProxy, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = output(["status", *proxy.arguments], capsys)
    assert status == 0
    assert "nftables mode" in text
    assert "Node n1 in zone zone-a: 192.168.1.10" in text
    assert "✓ no known problems" in text
    (family,) = [line.split() for line in text.splitlines() if line.startswith("IPv4")]
    assert family[-4:] == ["1", "1", "1", "0"]


def test_status_as_json_has_the_history(proxy: LiveProxy, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, _ = output(["status", "-o", "json", *proxy.arguments], capsys)
    document = json.loads(text)
    assert status == 0
    assert document["mode"] == "nftables"
    assert [entry["family"] for entry in document["families"]] == ["IPv4", "IPv6"]
    (sync,) = document["families"][0]["history"]
    assert (sync["full"], sync["changed"], sync["error"]) == (True, 1, "")


def test_status_shows_what_went_wrong(proxy: LiveProxy, capsys: pytest.CaptureFixture[str]) -> None:
    proxy.reload = ReloadReport(count=1, error="mode: unknown", age=12)
    proxy.raise_conditions(
        Condition.false("Configuration", "ReloadRejected", "mode: unknown", blocks=Blocks.SERVICES),
        Condition.false("OOMScore", "NotPermitted", "not permitted"),
    )
    proxy.backend.failures.append(KernelError("no memory"))
    proxy.put(factory.service("second", clusterIP="10.96.0.11"))
    status, text, _ = output(["status", *proxy.arguments], capsys)
    assert status == 1
    assert "✗ Configuration: mode: unknown" in text
    assert "Configuration reloaded 12s ago: rejected" in text
    assert "! degraded: OOMScore: not permitted" in text
    assert "✓" not in text


def test_status_counts_the_services_that_are_down_and_says_how_to_list_them(
    proxy: LiveProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.put(factory.service("alone", clusterIP="10.96.0.12"))
    status, text, _ = output(["status", *proxy.arguments], capsys)
    assert status == 0
    assert "! 1 of 2 service ports is down; to see which: pointsman list --state down" in text
    assert "✓ no known problems of the proxy itself" in text
    _, listed, _ = output(["list", "--state", "down", *proxy.arguments], capsys)
    assert "alone" in listed
    assert "web" not in listed
    _, text, _ = output(["status", "-o", "json", *proxy.arguments], capsys)
    document = json.loads(text)
    assert (document["health"], document["serviceStates"]["down"]) == ("healthy", 1)
    assert not [entry for entry in document["conditions"] if entry["status"] == "False"]


def test_explain_asks_the_kernel_of_the_running_proxy(
    proxy: LiveProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text, _ = output(["explain", "web:http", *proxy.arguments], capsys)
    assert status == 0
    assert "from the running proxy" in text
    assert "Kernel: matches the desired state" in text
    proxy.backend.programmed.clear()
    status, text, _ = output(["explain", "web", *proxy.arguments], capsys)
    assert status == 1
    assert "KernelDiffers" in text
    assert "lacks objects" in text
    status, text, _ = output(["explain", "web", "--no-kernel", *proxy.arguments], capsys)
    assert (status, "Kernel: not checked" in text) == (0, True)


def test_explain_knows_services_that_leave_no_rules(
    proxy: LiveProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text, _ = output(["explain", "headless", *proxy.arguments], capsys)
    assert status == 1
    assert "headless (clusterIP None)" in text
    proxy.put(factory.endpoint_slice(ports=[{"name": "other", "port": 1}]))
    _, text, _ = output(["explain", "web", *proxy.arguments], capsys)
    assert "PortNameMismatch" in text


def test_events_tell_when_a_service_broke_and_why(
    proxy: LiveProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.put(factory.endpoint_slice())
    proxy.put(factory.service("other", clusterIP="10.96.0.12"))
    status, text, _ = output(["events", *proxy.arguments], capsys)
    assert status == 0
    heading, *lines = [
        " ".join(line.split()[2:] if line[0] == "2" else line.split()) for line in text.splitlines()
    ]
    assert heading == "TIME SERVICE FAMILY EVENT MESSAGE"
    assert lines[0].startswith("- IPv4 FirstSync 1 service ports, 1 endpoints")
    assert lines[-2:] == [
        "default/web IPv4 ServiceDown no usable endpoint: 1 removed (10.244.1.5); usable 1 -> 0",
        "default/other IPv4 PortsAdded ports added: http/TCP; 0 usable endpoints",
    ]
    _, text, _ = output(["events", "web", "-o", "json", *proxy.arguments], capsys)
    (event,) = json.loads(text)["events"]
    assert (event["kind"], event["severity"], event["service"]) == ("ServiceDown", "error", "default/web")
    assert event["parameters"]["removedNames"] == ["10.244.1.5"]
    status, _, errors = output(["events", "-l", "app=web", *proxy.arguments], capsys)
    assert (status, errors) == (1, "pointsman events: no event matches\n")
    proxy.put(factory.service(metadata={"labels": {"app": "web"}}))
    _, text, _ = output(["events", "-l", "app=web", "--no-headers", *proxy.arguments], capsys)
    assert [line.split()[2:5] for line in text.splitlines()] == [["default/web", "IPv4", "ServiceDown"]]
    status, _, errors = output(["events", "-n", "nothing", *proxy.arguments], capsys)
    assert (status, errors) == (1, "pointsman events: no event matches\n")


def test_new_events_are_followed(proxy: LiveProxy) -> None:
    command = [sys.executable, "-m", "pointsman", "events", "-w", "-o", "json", *proxy.arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout is not None
        try:
            kinds = [json.loads(following.stdout.readline())["kind"]]
            proxy.put(factory.endpoint_slice())
            kinds.append(json.loads(following.stdout.readline())["kind"])
        finally:
            following.terminate()
    assert kinds == ["FirstSync", "ServiceDown"]


@pytest.mark.parametrize("command", ["explain", "trace"])
def test_a_misspelt_service_is_looked_for_where_the_proxy_knows_it_from(
    command: str, proxy: LiveProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    _, text, errors = output([command, "default/wbe", *proxy.arguments], capsys)
    assert "no Service default/wbe is known to the running proxy (2 Services known)" in text + errors
    assert "did you mean default/web?" in text + errors


@pytest.mark.skipif(os.geteuid() != 0, reason="top reads the kernel's flows, which needs root")
def test_top_says_when_no_service_matches(proxy: LiveProxy, capsys: pytest.CaptureFixture[str]) -> None:
    status, text, errors = output(["top", "--once", "nothing", *proxy.arguments], capsys)
    assert (status, text, errors) == (1, "", "pointsman top: no Service matches\n")


def test_a_report_may_go_to_standard_output_and_its_contents_are_told_beside_it(tmp_path: Path) -> None:
    """A pod has no place for a file that kubectl could copy."""
    arguments = ["report", "--no-rules", "--file=-", "--control-socket", str(tmp_path / "none")]
    done = subprocess.run(
        [sys.executable, "-m", "pointsman", *arguments], capture_output=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        assert "missing.txt" in [Path(name).name for name in archive.getnames()]
    assert b"Wrote standard output" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_explain_names_a_service_the_kernel_refused(
    proxy: LiveProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = factory.service("bad", clusterIP="10.96.0.66")
    proxy.backend.refuse = {factory.service_port("bad").name: "Invalid argument"}
    proxy.put(bad)
    status, text, _ = output(["explain", "bad", "--from", "node", *proxy.arguments], capsys)
    assert status == 1
    assert "KernelRefused: the kernel rejected its rules: Invalid argument" in text


def test_explain_refuses_questions_it_cannot_understand(
    proxy: LiveProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, errors = output(["explain", "web", "--from", "mars", *proxy.arguments], capsys)
    assert status == 2
    assert "use pod, node, outside, an IP address" in errors


def test_verify_lists_differences_with_their_services(
    proxy: LiveProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text, _ = output(["verify", *proxy.arguments], capsys)
    assert status == 0
    assert text.count("✓") == 2
    proxy.backend.programmed.clear()
    status, text, _ = output(["verify", *proxy.arguments], capsys)
    assert status == 1
    assert "✗ IPv4: 1 difference" in text
    assert "(default/web:http)" in text
    status, text, _ = output(["verify", "-o", "json", *proxy.arguments], capsys)
    assert json.loads(text)["families"][0]["differences"][0]["owner"] == {
        "namespace": "default",
        "service": "web",
        "port": "http",
        "protocol": 6,
    }


def test_only_the_owner_may_reach_the_socket(proxy: LiveProxy) -> None:
    assert stat.S_IMODE(proxy.socket.stat().st_mode) == 0o600
    assert stat.S_IMODE(proxy.socket.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_other_users_are_refused_even_when_they_reach_the_socket(proxy: LiveProxy) -> None:
    code = (
        "import os, socket, sys; os.chdir(sys.argv[1]); os.setuid(65534); s = socket.socket(socket.AF_UNIX);"
        "s.connect('control.sock'); s.sendall(b'GET /status HTTP/1.0\\r\\n\\r\\n'); print(s.recv(200).decode())"
    )
    proxy.socket.parent.chmod(0o711)
    proxy.socket.chmod(0o666)
    answer = subprocess.run(
        [sys.executable, "-c", code, str(proxy.socket.parent)], capture_output=True, text=True
    )
    assert "403" in answer.stdout, answer


def test_a_dead_socket_is_replaced_and_a_foreign_one_left(tmp_path: Path) -> None:
    place = tmp_path / "control" / "control.sock"
    place.parent.mkdir()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(place))
    dead.close()
    with live_proxy(tmp_path, NODE) as first:
        assert main(["verify", *first.arguments]) == 0
        place.unlink()
        other = socket.socket(socket.AF_UNIX)
        other.bind(str(place))
    assert place.exists(), "the socket of another process must stay"
    other.close()


def test_without_a_proxy_the_message_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "control.sock"
    status, _, errors = output(["status", "--control-socket", str(place)], capsys)
    assert status == 2
    assert "no proxy runs here" in errors
    assert "--control-socket" in errors
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(place))
    dead.close()
    status, _, errors = output(["verify", "--control-socket", str(place)], capsys)
    assert (status, "no proxy listens" in errors) == (2, True)


def test_the_socket_goes_with_the_proxy(tmp_path: Path) -> None:
    with live_proxy(tmp_path, NODE) as running:
        assert running.socket.exists()
    assert list(running.socket.parent.iterdir()) == []
