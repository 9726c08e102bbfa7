"""A real API server takes what the chart and the kustomizations render, with every field known to it.

Runs where KUBE_APISERVER_BINARY names a kube-apiserver and etcd is installed; nothing is kept, every object is a dry run.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from tests.harness.waiting import wait_until
from tests.project.deploy.rendering import KUSTOMIZATIONS, Rendering, chart, kustomized, needs_helm

BINARY = os.environ.get("KUBE_APISERVER_BINARY", "")
TERM = (
    "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
    ".nodeSelectorTerms[0].matchExpressions[0]"
)
EVERYTHING = (
    "apiServer.host=192.0.2.10",
    "kubeconfig.secret=credentials",
    "env[0].name=HTTPS_PROXY,env[0].value=http://192.0.2.1:3128",
    "podAnnotations.team=net",
    f"{TERM}.key=kubernetes.io/arch,{TERM}.operator=Exists",
    "imagePullSecrets[0].name=registry",
    "extraVolumes[0].name=more,extraVolumes[0].hostPath.path=/more",
    "extraVolumeMounts[0].name=more,extraVolumeMounts[0].mountPath=/more",
    "readinessProbe.failureThreshold=2",
    "maxUnavailable=1",
)
PATHS = {
    "ServiceAccount": "api/v1/namespaces/kube-system/serviceaccounts",
    "ConfigMap": "api/v1/namespaces/kube-system/configmaps",
    "DaemonSet": "apis/apps/v1/namespaces/kube-system/daemonsets",
    "ClusterRole": "apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
}

pytestmark = [
    pytest.mark.skipif(not BINARY, reason="KUBE_APISERVER_BINARY does not name a kube-apiserver"),
    pytest.mark.skipif(shutil.which("etcd") is None, reason="etcd is not installed"),
]


class ApiServer:
    """A kube-apiserver on loopback, asked as its administrator."""

    def __init__(self, port: int) -> None:
        self._url = f"https://127.0.0.1:{port}"
        self._tls = ssl.create_default_context()
        self._tls.check_hostname = False
        self._tls.verify_mode = ssl.CERT_NONE

    def ask(self, path: str, document: object = None) -> tuple[int, str]:
        body = None if document is None else json.dumps(document).encode()
        headers = {"Authorization": "Bearer test", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self._url}/{path}", body, headers)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self._tls)
        )
        try:
            with opener.open(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()
        except OSError as error:
            return 0, str(error)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    directory = tmp_path_factory.mktemp("kube-apiserver")
    etcd, peers, port = _free_port(), _free_port(), _free_port()
    key = directory / "sa.key"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    (directory / "tokens.csv").write_text("test,admin,admin,system:masters\n")
    store = f"http://127.0.0.1:{etcd}"
    commands: list[list[str]] = [
        [
            *("etcd", f"--data-dir={directory / 'etcd'}", f"--listen-client-urls={store}"),
            *(f"--advertise-client-urls={store}", f"--listen-peer-urls=http://127.0.0.1:{peers}"),
        ],
        [
            *(BINARY, f"--etcd-servers={store}", f"--secure-port={port}", "--bind-address=127.0.0.1"),
            *(f"--cert-dir={directory}", f"--token-auth-file={directory / 'tokens.csv'}"),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            *("--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC"),
            "--service-cluster-ip-range=10.96.0.0/16",
        ],
    ]
    with contextlib.ExitStack() as ending:
        for number, command in enumerate(commands):
            log = ending.enter_context((directory / f"{number}.log").open("wb"))
            process = subprocess.Popen(command, stdout=log, stderr=log)
            ending.callback(process.wait)
            ending.callback(process.terminate)
        made = ApiServer(port)
        paths = ("readyz", "api/v1/namespaces/kube-system")
        server_log = directory / "1.log"
        wait_until(
            lambda: all(made.ask(path)[0] == 200 for path in paths),
            seconds=120,
            details=lambda: server_log.read_text()[-2000:],
        )
        yield made


def _refusals(server: ApiServer, made: Rendering) -> Iterator[tuple[str, Any]]:
    for document in made.documents:
        asked = f"{PATHS[document['kind']]}?dryRun=All&fieldValidation=Strict"
        status, answer = server.ask(asked, document)
        if status != 201:
            yield document["kind"], answer


@pytest.mark.parametrize("directory", KUSTOMIZATIONS)
def test_the_api_server_takes_a_kustomization(server: ApiServer, directory: str) -> None:
    assert list(_refusals(server, kustomized(directory))) == []


@needs_helm
@pytest.mark.parametrize("settings", [(), EVERYTHING], ids=["default", "everything"])
def test_the_api_server_takes_the_chart(server: ApiServer, settings: tuple[str, ...]) -> None:
    assert list(_refusals(server, chart(*settings))) == []


def test_the_api_server_names_a_field_that_does_not_exist(server: ApiServer) -> None:
    """So that the tests above can fail."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "x"}, "misspelt": 1}
    ((kind, answer),) = _refusals(server, Rendering([account]))
    assert kind == "ServiceAccount"
    assert "misspelt" in answer
