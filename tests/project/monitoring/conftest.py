"""What two real processes print at /metrics: one in each of the modes whose families differ."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.harness.api_thread import ApiThread
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import HEALTH_PORT, LabNode, NodeProcess
from tests.harness.waiting import wait_until


class Exposition(NamedTuple):
    """What a process printed at once."""

    families: dict[str, Metric]

    @property
    def sample_names(self) -> set[str]:
        return {sample.name for family in self.families.values() for sample in family.samples}

    @property
    def label_names(self) -> set[str]:
        return {
            label for family in self.families.values() for sample in family.samples for label in sample.labels
        }

    def values(self, name: str) -> dict[str, float]:
        """By IP family, of a family of metrics that has only this label."""
        return {
            sample.labels["ip_family"]: sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name
        }


def exposition(node: LabNode) -> Exposition:
    body = node.get("/metrics").body + node.get("/metrics/slis").body
    return Exposition({family.name: family for family in text_string_to_metric_families(body)})


@pytest.fixture(scope="module")
def from_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exposition]:
    """nftables mode with an API server and traffic, after changes and questions about health."""
    directory = tmp_path_factory.mktemp("server")
    node = LabNode()
    process = NodeProcess(node, directory)
    try:
        with ApiThread(node, directory) as api:
            api.load(web_service(), *web_slices(), node_object())
            process.configure(clientConnection={"kubeconfig": str(api.kubeconfig)})
            process.start("--service-metrics", "--probe-addresses=10.96.0.250", from_api=True)
            process.wait_synced()
            now = datetime.now(UTC).isoformat()
            for item in web_slices(zone="zone-b"):
                item["metadata"]["annotations"] = {"endpoints.kubernetes.io/last-change-trigger-time": now}
                api.call(lambda server, item=item: server.update(item))  # type: ignore[misc]
            with node.backend():
                node.wait_served("10.96.0.10")
                wait_until(lambda: node.metric("pointsman_service_connections_total"))
                wait_until(lambda: node.metric("pointsman_service_port_states", state="healthy"))
                wait_until(lambda: node.metric("pointsman_host_checks_total"))
            for path in ("/healthz", "/livez"):
                node.get(path, HEALTH_PORT)
            node.get("/healthz")
            programmed = "kubeproxy_network_programming_duration_seconds_count"
            wait_until(lambda: len(exposition(node).values(programmed)), lambda families: families == 2)
            yield exposition(node)
    finally:
        process.stop()
        node.close()


@pytest.fixture(scope="module")
def from_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exposition]:
    """iptables mode from manifests, one of which cannot be used, and with settings of the kernel that cannot be made."""
    node = LabNode()
    process = NodeProcess(node, tmp_path_factory.mktemp("files"))
    try:
        process.configure(mode="iptables")
        process.objects(web_service(), *web_slices(), node_object(), web_service("bad", 300))
        read_only = 'mount -o bind,ro /proc/sys /proc/sys && exec "$@"'
        process.start(wrap=("unshare", "--mount", "sh", "-c", read_only, "sh"))
        process.wait_synced()
        wait_until(lambda: node.metric("pointsman_objects_unusable"), lambda count: count == 1)
        yield exposition(node)
    finally:
        process.stop()
        node.close()
