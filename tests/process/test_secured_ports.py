"""The served ports over TLS: who gets metrics, from a process with an API server, and Prometheus among its clients."""

from __future__ import annotations

import http.client
import json
import shutil
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.fake.apiserver import FakeApiServer
from tests.fake.certificates import make_certificates, make_client_certificate
from tests.harness.api_thread import ApiThread
from tests.harness.kube_objects import node_object, web_service, web_slices
from tests.harness.node import HEALTH_PORT, METRICS_PORT, NODE_IP, Answer, LabNode, NodeProcess, needs_root
from tests.harness.waiting import wait_until

pytestmark = needs_root

SCRAPER = "system:serviceaccount:monitoring:prometheus"
DOCUMENT = Path(__file__).parents[2] / "docs/security.md"


def shown_blocks() -> list[str]:
    """The YAML of the document: the role, and the job of Prometheus."""
    section = DOCUMENT.read_text().partition("### TLS and authentication")[2].partition("\n## ")[0]
    return [part.partition("```")[0] for part in section.split("```yaml\n")[1:]]


class SecurePorts:
    """A proxy with secured ports, and what its clients need."""

    def __init__(self, node: LabNode, process: NodeProcess, pki: Path) -> None:
        self.node, self.process, self.pki = node, process, pki

    def start(self, *flags: str) -> None:
        certificate = (
            f"--tls-cert-file={self.pki}/server.crt",
            f"--tls-private-key-file={self.pki}/server.key",
        )
        self.process.start(*certificate, *flags, from_api=True)
        wait_until(lambda: self.get("/healthz", port=HEALTH_PORT).status == 200, seconds=40)

    def get(
        self,
        path: str,
        token: str = "",
        *,
        client: str = "",
        port: int = METRICS_PORT,
        host: str = NODE_IP,
    ) -> Answer:
        context = ssl.create_default_context(cafile=self.pki / "ca.crt")
        context.check_hostname = False
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if client:
            context.load_cert_chain(self.pki / f"{client}.crt", self.pki / f"{client}.key")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        connection = http.client.HTTPSConnection(host, port, timeout=20, context=context)
        try:
            with self.node.namespace.entered():
                connection.connect()
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return Answer(answer.status, answer.read().decode(), dict(answer.getheaders()))
        except OSError as error:
            return Answer(0, str(error), {})
        finally:
            connection.close()

    def status(self, path: str, token: str = "", *, client: str = "", host: str = NODE_IP) -> int:
        return self.get(path, token, client=client, host=host).status


@pytest.fixture
def ports(node: LabNode, process: NodeProcess, api: ApiThread, tmp_path: Path) -> SecurePorts:
    pki = tmp_path / "pki"
    pki.mkdir()
    make_certificates(pki)
    make_client_certificate(pki, "scraper", "/CN=scraper/O=monitoring")
    make_client_certificate(pki, "renewed", "/CN=renewed")
    api.load(web_service(), *web_slices(), node_object())
    process.configure(
        clientConnection={"kubeconfig": str(api.kubeconfig)}, metricsBindAddress=f"0.0.0.0:{METRICS_PORT}"
    )

    (rule,) = yaml.safe_load(shown_blocks()[0])["rules"]

    def allow(server: FakeApiServer) -> None:
        server.users["good"] = {"username": SCRAPER, "groups": ["system:authenticated"]}
        server.permissions |= {
            (user, verb, path)
            for user in (SCRAPER, "scraper")
            for verb in rule["verbs"]
            for path in rule["nonResourceURLs"]
        }

    api.call(allow)
    return SecurePorts(node, process, pki)


@pytest.fixture
def prometheus(ports: SecurePorts, tmp_path: Path) -> Iterator[SecurePorts]:
    """Prometheus on the same node, which scrapes with a bearer token."""
    if shutil.which("prometheus") is None:
        pytest.skip("needs prometheus: run scripts/packages")
    token = tmp_path / "token"
    token.write_text("good\n")
    config = tmp_path / "prometheus.yml"
    replacements = {
        "/var/run/secrets/kubernetes.io/serviceaccount/token": str(token),
        "/etc/prometheus/pointsman-ca.crt": str(ports.pki / "ca.crt"),
        "pointsman.kube-system": "kubernetes.default",
        "192.0.2.10:10249": f"{NODE_IP}:{METRICS_PORT}",
    }
    job = shown_blocks()[1]
    for shown, ours in replacements.items():
        assert job.count(shown) == 1
        job = job.replace(shown, ours)
    config.write_text("global: {scrape_interval: 1s}\n" + job)
    command = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}"]
    with ports.node.namespace.entered():
        running = subprocess.Popen(
            [*command, "--web.listen-address=127.0.0.1:9090"], stderr=subprocess.DEVNULL
        )
    yield ports
    running.terminate()
    running.wait(30)


def test_metrics_are_for_clients_that_the_api_server_allows(
    prometheus: SecurePorts, node: LabNode, api: ApiThread
) -> None:
    ports = prometheus
    ports.start("--secure-metrics=remote", "--secure-health", f"--client-ca-file={ports.pki}/ca.crt")
    assert "kubeproxy_sync_proxy_rules" in ports.get("/metrics", "good").body
    assert ports.status("/metrics", client="scraper") == 200
    assert ports.status("/metrics") == ports.status("/metrics", "bad") == 401
    assert ports.status("/configz", "good") == ports.status("/configz", client="scraper") == 403
    assert ports.status("/metrics", host="127.0.0.1") == 200
    assert ports.get("/readyz", port=HEALTH_PORT).status in (200, 503)
    assert node.get("/metrics").status == 400

    def scraped() -> str:
        found = json.loads(node.get("/api/v1/query?query=up", port=9090).body or "{}")
        return "".join(one["value"][1] for one in found.get("data", {}).get("result", []))

    wait_until(lambda: scraped() == "1")

    for name in ("crt", "key"):
        shutil.copy(ports.pki / f"renewed.{name}", ports.pki / f"server.{name}")
    with node.namespace.entered():
        shown = ssl.get_server_certificate((NODE_IP, METRICS_PORT))
    assert shown.strip() in (ports.pki / "renewed.crt").read_text()

    api.stop()
    assert ports.status("/metrics", "good") == 200
    assert ports.status("/metrics", "another") == 503
    body = ports.get("/metrics", "good").body
    assert 'pointsman_condition{reason="ReviewFailed",type="AccessReviews"} 1.0' in body
    assert 'pointsman_condition{reason="AsExpected",type="ServingCertificate"} 0.0' in body


def test_loopback_can_be_asked_as_well_and_a_certificate_is_made_without_files(
    ports: SecurePorts, node: LabNode, process: NodeProcess
) -> None:
    process.start("--secure-metrics=all", from_api=True)
    process.wait_synced()
    context = ssl._create_unverified_context()
    for token, status in (("", 401), ("good", 200)):
        connection = http.client.HTTPSConnection("127.0.0.1", METRICS_PORT, timeout=20, context=context)
        with node.namespace.entered():
            connection.connect()
        connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"})
        assert connection.getresponse().status == status
        connection.close()
