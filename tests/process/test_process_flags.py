"""Flags that end at once, their exit statuses, ports that are taken, and a host that allows less."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

import pytest
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import HEALTH_PORT, LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until

pytestmark = needs_root

NOTHING_OF_CONNTRACK = {"maxPerCore": 0, "tcpCloseWaitTimeout": "0s", "tcpEstablishedTimeout": "0s"}
OBJECTS = (web_service(), *web_slices(), node_object())


def _finished(process: NodeProcess, *flags: str) -> tuple[int, str]:
    process.log.unlink(missing_ok=True)
    process.start(*flags)
    return process.wait_exit(), process.log_text


def test_flags_that_only_answer_exit_at_once(process: NodeProcess, tmp_path: Path) -> None:
    status, text = _finished(process, "--version")
    assert status == 0
    assert text.startswith("Pointsman ")
    status, text = _finished(process, "--check")
    assert status == 0
    assert "mode: nftables" in text
    status, text = _finished(process, f"--write-config-to={tmp_path / 'out.yaml'}")
    assert status == 0
    assert "hostnameOverride: n1" in (tmp_path / "out.yaml").read_text()
    status, text = _finished(process, f"--write-config-to={tmp_path}/missing/out.yaml")
    assert status == 1
    assert "cannot write" in text


def test_everything_wrong_is_listed_and_nothing_is_started(process: NodeProcess) -> None:
    process.configure(mode="turbo", clusterCIDR="not-a-range")
    status, text = _finished(process)
    assert status == 1
    assert "turbo" in text
    assert "clusterCIDR" in text
    assert "Traceback" not in text
    status, text = _finished(process, "--hostname-ovverride=x")
    assert status != 0
    assert "hostname-ovverride" in text


def test_init_only_sets_the_host_up_and_cleanup_puts_it_back(node: LabNode, process: NodeProcess) -> None:
    timeout = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"
    before = node.run("cat", timeout)
    process.configure(conntrack={"maxPerCore": 0, "tcpCloseWaitTimeout": "1234s"})
    status, text = _finished(process, "--init-only")
    assert status == 0, text
    assert node.run("cat", timeout).strip() == "1234"
    assert node.run("nft", "list", "tables") == ""

    process.objects(*OBJECTS)
    process.start()
    process.wait_synced()
    process.stop()
    assert "kube-proxy" in node.run("nft", "list", "tables")
    status, text = _finished(process, "--cleanup")
    assert status == 0, text
    assert "removed" in text
    assert node.run("nft", "list", "tables") == ""
    assert node.run("cat", timeout) == before
    status, text = _finished(process, "--cleanup")
    assert status == 0
    assert "nothing to remove" in text


def test_without_a_mode_nftables_is_picked_and_the_reason_given(node: LabNode, process: NodeProcess) -> None:
    process.configure(mode=None)
    process.objects(*OBJECTS)
    process.start()
    process.wait_synced()
    assert node.get("/proxyMode").body == "nftables"
    assert "no mode configured and the kernel can do nftables" in process.log_text


def test_a_taken_port_is_tried_again_or_fatal_as_configured(node: LabNode, process: NodeProcess) -> None:
    with node.namespace.entered():
        squatter = socket.socket()
    squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with squatter:
        squatter.bind(("0.0.0.0", HEALTH_PORT))
        squatter.listen(1)
        process.configure(bindAddressHardFail=True)
        status, text = _finished(process)
        assert status == 1
        assert str(HEALTH_PORT) in text
        assert "Traceback" not in text
        process.configure()
        process.objects(*OBJECTS)
        with node.backend():
            process.start()
            node.wait_served("10.96.0.10")
    wait_until(lambda: node.get("/healthz", HEALTH_PORT).status == 200)


def test_a_new_configuration_with_a_taken_port_is_rejected_though_that_is_fatal_at_start(
    node: LabNode, process: NodeProcess
) -> None:
    with node.namespace.entered():
        squatter = socket.socket()
    with squatter, node.backend():
        squatter.bind(("127.0.0.1", 11249))
        squatter.listen(1)
        process.objects(*OBJECTS)
        process.configure(bindAddressHardFail=True)
        process.start()
        process.wait_synced()
        process.configure(bindAddressHardFail=True, metricsBindAddress="127.0.0.1:11249")
        wait_until(lambda: "New configuration rejected" in process.log_text)
        assert "11249" in process.log_text
        assert "Traceback" not in process.log_text
        assert node.get("/metrics").status == 200
        node.assert_served("10.96.0.10")
        assert process.stop() == 0


def test_a_read_only_proc_sys_degrades_until_nothing_is_asked_of_it_and_is_not_fatal(
    node: LabNode, process: NodeProcess, tmp_path: Path
) -> None:
    if not shutil.which("unshare"):
        pytest.skip("needs unshare from util-linux")
    process.configure(
        mode="iptables", conntrack={"maxPerCore": 0, "tcpCloseWaitTimeout": "777s"}, oomScoreAdj=0
    )
    process.objects(*OBJECTS)
    read_only = tmp_path / "read-only"
    read_only.write_text('#!/bin/sh\nmount -o bind,ro /proc/sys /proc/sys && exec "$@"\n')
    read_only.chmod(0o755)
    with node.backend():
        process.start(wrap=("unshare", "--mount", str(read_only)))
        process.wait_synced()
        node.wait_served("10.96.0.10")
        conntrack, localnet = "SysctlNfConntrackTcpTimeoutCloseWait", "SysctlRouteLocalnet"
        for type_ in (conntrack, localnet):
            assert node.metric("pointsman_condition", type=type_) == 1
        wait_until(lambda: f'"Condition raised" type="{localnet}"' in process.log_text)
        process.configure(mode="iptables", conntrack=NOTHING_OF_CONNTRACK, oomScoreAdj=0)
        wait_until(lambda: node.metric("pointsman_condition", type=conntrack) == 0)
        assert node.metric("pointsman_condition", type=localnet) == 1
        process.configure(mode="nftables", conntrack=NOTHING_OF_CONNTRACK, oomScoreAdj=0)
        wait_until(lambda: node.get("/proxyMode").body == "nftables")
        process.wait_synced()
        assert node.metric("pointsman_condition", type=localnet) == 0
        assert process.stop() == 0
    for type_ in (conntrack, localnet):
        assert process.log_text.count(f'"Condition raised" type="{type_}"') == 1
    assert "set it on the host" in process.log_text


def test_a_full_disk_for_the_state_directory_keeps_the_proxy_working(
    node: LabNode, process: NodeProcess, tmp_path: Path
) -> None:
    full = tmp_path / "full-disk"
    full.write_text(
        f"#!/bin/sh\nmkdir -p {process.state} && mount -t tmpfs -o size=4k tmpfs {process.state} && "
        f'dd if=/dev/zero of={process.state}/ballast bs=4k count=1 status=none; exec "$@"\n'
    )
    full.chmod(0o755)
    process.configure(mode="iptables")
    process.objects(*OBJECTS)
    with node.backend():
        process.start(wrap=("unshare", "--mount", str(full)))
        process.wait_synced()
        node.wait_served("10.96.0.10")
        process.objects(web_service("later", 20), *web_slices("later"), *OBJECTS)
        node.wait_served("10.96.0.20")
        assert process.stop() == 0
    assert "No space left" in process.log_text
    assert "Traceback" not in process.log_text


WITHOUT_NET_ADMIN = ("setpriv", "--inh-caps=-net_admin", "--bounding-set=-net_admin")


@pytest.mark.parametrize("mode", ["nftables", "iptables", None])
def test_a_mode_that_cannot_run_here_ends_the_process_with_the_reason(
    node: LabNode, process: NodeProcess, mode: str | None
) -> None:
    process.configure(mode=mode)
    process.objects(*OBJECTS)
    process.start(wrap=WITHOUT_NET_ADMIN)
    assert process.wait_exit() == 1
    told = [line for line in process.log_text.splitlines() if "Cannot run" in line]
    assert len(told) == 1
    assert told[0].endswith('err="not permitted to program the kernel: run as root, or with CAP_NET_ADMIN"')
    assert node.run("nft", "list", "tables") == ""


def test_init_only_for_a_mode_that_cannot_run_here_says_why_and_changes_nothing(
    node: LabNode, process: NodeProcess
) -> None:
    process.configure(conntrack={"maxPerCore": 0, "tcpCloseWaitTimeout": "1234s"})
    process.start("--init-only", wrap=WITHOUT_NET_ADMIN)
    assert process.wait_exit() == 1
    assert "not permitted to program the kernel" in process.log_text
    assert "Traceback" not in process.log_text
    timeout = "/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"
    assert node.run("cat", timeout).strip() != "1234"


def test_a_doubtful_setting_is_logged_at_the_start(process: NodeProcess) -> None:
    process.configure(clusterCIDR="fd00:1::/64")
    process.objects(*OBJECTS)
    process.start()
    process.wait_synced()
    assert "clusterCIDR is IPv6 only" in process.log_text
