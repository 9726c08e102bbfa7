"""What a process does to its host before it serves, that it undoes it when it cannot, and that it serves alone."""

from __future__ import annotations

import http.server
import socket
import subprocess
import sys
import threading
from pathlib import Path

from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import HEALTH_PORT, METRICS_PORT, LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until

pytestmark = needs_root

NOTHING_OF_CONNTRACK = {"maxPerCore": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"}
ONE_SETTING = {"maxPerCore": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "1234s"}
SETTING = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"
ROUTE_LOCALNET = "/proc/sys/net/ipv4/conf/all/route_localnet"


def test_init_only_in_iptables_mode_allows_node_ports_on_loopback(
    node: LabNode, process: NodeProcess
) -> None:
    process.configure(mode="iptables", conntrack=NOTHING_OF_CONNTRACK, nodePortAddresses=["198.51.100.0/24"])
    process.start("--init-only")
    assert process.wait_exit() == 0, process.log_text
    assert node.run("cat", ROUTE_LOCALNET).strip() == "0"
    process.configure(mode="iptables", conntrack=NOTHING_OF_CONNTRACK)
    process.start("--init-only")
    assert process.wait_exit() == 0, process.log_text
    assert node.run("cat", ROUTE_LOCALNET).strip() == "1"


def test_init_only_without_privileges_writes_where_the_hosts_settings_are_mounted(
    node: LabNode, process: NodeProcess, tmp_path: Path
) -> None:
    """As in the shipped init container: /proc/sys read-only, the host's mounted elsewhere, NET_ADMIN and no more."""
    mounted = tmp_path / "host/proc/sys"
    mounted.mkdir(parents=True)
    confined = tmp_path / "confined"
    confined.write_text(
        f"#!/bin/sh -e\nmount --bind /proc/sys {mounted}\nmount -o bind,ro /proc/sys /proc/sys\n"
        'exec setpriv --no-new-privs --inh-caps=-all --bounding-set=-all,+net_admin "$@"\n'
    )
    confined.chmod(0o755)
    process.configure(conntrack=ONE_SETTING)
    wrap = ("unshare", "--mount", str(confined))
    before = node.run("cat", SETTING)
    process.start("--init-only", wrap=wrap)
    assert process.wait_exit() == 0, "a setting that cannot be made stops the pod no more than the proxy"
    assert "cannot set net/netfilter/nf_conntrack_tcp_timeout_close_wait" in process.log_text
    assert node.run("cat", SETTING) == before
    process.start("--init-only", f"--host-root={tmp_path / 'host'}", wrap=wrap)
    assert process.wait_exit() == 0, process.log_text
    assert node.run("cat", SETTING).strip() == "1234"


def test_a_start_that_fails_leaves_the_host_as_it_was(node: LabNode, process: NodeProcess) -> None:
    before = node.run("cat", SETTING)
    process.configure(conntrack=ONE_SETTING, clientConnection={"kubeconfig": "/nonexistent/kubeconfig"})
    process.start(from_api=True)
    assert process.wait_exit() == 1
    assert "/nonexistent/kubeconfig" in process.log_text
    assert node.run("cat", SETTING) == before
    process.configure(conntrack=ONE_SETTING)
    process.start("--manifests=/nonexistent/manifests", from_api=True)
    assert process.wait_exit() == 1
    assert "--manifests: cannot read /nonexistent/manifests: No such file or directory" in process.log_text
    assert node.run("cat", SETTING) == before
    with node.namespace.entered():
        squatter = socket.socket()
    with squatter:
        squatter.bind(("0.0.0.0", HEALTH_PORT))
        squatter.listen(1)
        process.configure(conntrack=ONE_SETTING, bindAddressHardFail=True)
        process.start()
        assert process.wait_exit() == 1, process.log_text
    assert node.run("cat", SETTING) == before


def test_a_second_instance_names_the_first_and_may_wait_to_take_over(
    node: LabNode, process: NodeProcess, tmp_path: Path
) -> None:
    process.objects(web_service(), *web_slices(), node_object())
    process.start()
    process.wait_synced()
    second = NodeProcess(node, tmp_path / "second")
    second.config_file, second.manifests = process.config_file, process.manifests
    second.start()
    assert second.wait_exit() == 1
    assert f"another instance (pid {process.pid}) serves this node" in second.log_text
    assert node.get("/healthz", HEALTH_PORT).status == 200
    second.start("--wait-for-instance")
    wait_until(lambda: "Waiting for another instance" in second.log_text)
    assert second.stop() == 0
    second.log.unlink()
    second.start("--wait-for-instance")
    try:
        wait_until(lambda: "Waiting for another instance" in second.log_text)
        process.stop()
        wait_until(lambda: "Synced" in second.log_text)
        assert node.get("/healthz", HEALTH_PORT).status == 200
    finally:
        second.stop()


class KubeProxyPorts(http.server.BaseHTTPRequestHandler):
    """What kube-proxy answers at its metrics port."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"iptables")

    def log_message(self, *_: object) -> None:
        pass


def test_a_running_kube_proxy_is_named_in_one_sentence_and_what_it_left_goes_with_it(
    node: LabNode, process: NodeProcess, tmp_path: Path
) -> None:
    process.objects(web_service(), *web_slices(), node_object())
    control = tmp_path / "control.sock"
    with node.namespace.entered():
        health = socket.create_server(("0.0.0.0", HEALTH_PORT))
        metrics = http.server.ThreadingHTTPServer(("127.0.0.1", METRICS_PORT), KubeProxyPorts)
    serving = threading.Thread(target=metrics.serve_forever)
    serving.start()
    message = (
        "another proxy in iptables mode serves this node and holds "
        f"0.0.0.0:{HEALTH_PORT} and 127.0.0.1:{METRICS_PORT}"
    )
    try:
        node.run("iptables", "-t", "nat", "-N", "KUBE-SERVICES")
        process.start(f"--control-socket={control}")
        wait_until(lambda: message in process.log_text, seconds=60)
        wait_until(lambda: process.log_text.count("Synced") >= 2)
        told = _status(control)
        assert next(line for line in told.splitlines() if "another proxy" in line).startswith("✗ Listening: ")
        assert f"{message}: run one proxy per node" in told
        wait_until(lambda: "KUBE-SERVICES" not in node.run("iptables-save"), seconds=60)
        node.run("iptables", "-t", "nat", "-N", "KUBE-SERVICES")  # written again by the one that still runs
    finally:
        health.close()
        metrics.shutdown()
        metrics.server_close()
        serving.join()
    wait_until(lambda: "KUBE-SERVICES" not in node.run("iptables-save"), seconds=60)
    assert process.log_text.count("Cannot listen") == 2
    assert "another proxy" not in _status(control)


def _status(control: Path) -> str:
    asked = [sys.executable, "-m", "pointsman", "status", f"--control-socket={control}"]
    return subprocess.run(asked, capture_output=True, text=True).stdout
