"""Requests to the API server as the families that every Kubernetes component has."""

from __future__ import annotations

import contextlib

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.fake.apiserver import FakeApiServer
from tests.fake.skipping_clock import SkippingClock
from tests.harness.kube_objects import service

from pointsman.errors import KubeError
from pointsman.kube.access import Access, ExecPlugin
from pointsman.kube.client import ApiClient
from pointsman.kube.client_metrics import ClientMetrics
from pointsman.obs.registry import Metrics

SERVICES = "/api/v1/services"
GRANTED = (
    '{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1", "status": {"token": "t"}}'
)

pytestmark = pytest.mark.usefixtures("protocol")


def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Values by name and by what its labels say, other than the host."""
    return {
        (sample.name, " ".join(v for k, v in sorted(sample.labels.items()) if k != "host")): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        if family.name.startswith("rest_client_")
        for sample in family.samples
        if sample.labels.get("host", "api.test") == "api.test"
    }


async def test_requests_are_counted_timed_and_weighed() -> None:
    metrics = Metrics("nftables")
    async with FakeApiServer() as server:
        server.add(service("web"))
        client = ApiClient(server.access, environ={}, listener=ClientMetrics(metrics, "api.test"))
        answer = await client.request("GET", SERVICES)
        with contextlib.suppress(KubeError):
            await client.request("GET", "/api/v1/namespaces/default/services/nobody")
        await client.close()
    found = samples(metrics)
    assert found["rest_client_requests_total", "200 GET"] == 1
    assert found["rest_client_requests_total", "404 GET"] == 1
    assert found["rest_client_request_duration_seconds_count", "GET"] == 2
    assert found["rest_client_request_size_bytes_sum", "GET"] == 0
    assert found["rest_client_response_size_bytes_count", "GET"] == 1
    assert found["rest_client_response_size_bytes_sum", "GET"] == len(answer.body)


async def test_no_answer_counts_as_an_error() -> None:
    metrics = Metrics("nftables")
    client = ApiClient(
        Access("http://127.0.0.1:1", "test"), environ={}, listener=ClientMetrics(metrics, "api.test")
    )
    with contextlib.suppress(KubeError):
        await client.request("POST", SERVICES, body=b"12345")
    await client.close()
    found = samples(metrics)
    assert found["rest_client_requests_total", "<error> POST"] == 1
    assert found["rest_client_request_size_bytes_sum", "POST"] == 5
    assert not [name for name, _ in found if name.startswith("rest_client_response_size")]


async def test_waiting_for_a_turn_is_measured_streams_are_not_timed() -> None:
    metrics = Metrics("nftables")
    clock = SkippingClock()
    async with FakeApiServer() as server:
        client = ApiClient(
            server.access,
            qps=2.0,
            burst=1,
            environ={},
            listener=ClientMetrics(metrics, "api.test"),
            clock=clock.clock,
            sleep=clock.sleep,
        )
        for _ in range(2):
            async with client.stream(SERVICES, params={"watch": "true"}):
                pass
        await client.close()
    found = samples(metrics)
    assert found["rest_client_rate_limiter_duration_seconds_count", "GET"] == 2
    assert found["rest_client_rate_limiter_duration_seconds_sum", "GET"] == pytest.approx(0.5)
    assert found["rest_client_requests_total", "200 GET"] == 2
    assert not [name for name, _ in found if name.startswith("rest_client_request_duration")]


@pytest.mark.parametrize(
    ("command", "counted"),
    [
        (("sh", "-c", "exit 7"), "plugin_execution_error 7"),
        (("/no/such/program",), "plugin_not_found_error 1"),
        (("/dev",), "client_internal_error 1"),
        (("echo", "nonsense"), "no_error 0"),
        (("echo", GRANTED), "no_error 0"),
    ],
)
async def test_calls_of_the_credential_plugin_are_counted_by_outcome(
    command: tuple[str, ...], counted: str
) -> None:
    metrics = Metrics("nftables")
    plugin = ExecPlugin(command[0], "client.authentication.k8s.io/v1", command[1:])
    access = Access("http://127.0.0.1:1", "test", exec_plugin=plugin)
    client = ApiClient(access, environ={}, listener=ClientMetrics(metrics, "api.test"))
    with contextlib.suppress(KubeError):
        await client.request("GET", SERVICES)
    await client.close()
    assert samples(metrics)["rest_client_exec_plugin_call_total", counted] == 1
