"""One API server for a fleet: kube-apiserver with etcd where KUBE_APISERVER_BINARY names one, else the tests' fake one.

`python -m bench.apiserver OBJECTS PORT` is the fake one as a process: SIGUSR1 takes it off the network, SIGUSR2 brings it back
with everything it remembered, as etcd would for a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from tests.fake.apiserver import FakeApiServer
from tests.fake.apistore import PATHS

TOKEN = "fleet"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
ETCD_PORTS = (12379, 12380)
MAX_CONCURRENT_REQUESTS = 20
READY_TIMEOUT_SECONDS = 90.0
STOP_TIMEOUT_SECONDS = 15.0
DECIDED_BY_THE_SERVER = ("uid", "resourceVersion", "creationTimestamp", "generation")

Object = dict[str, Any]


class Server:
    """A running server. `pid` is the process whose time and memory count."""

    url: str
    name: str
    pid: int
    ready_path: str

    def ready(self) -> bool:
        request = urllib.request.Request(self.url + self.ready_path, headers=HEADERS)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusting())
        )
        try:
            with opener.open(request, timeout=5) as answer:
                return int(answer.status) == 200
        except OSError:
            return False

    def wait_until_ready(self) -> None:
        until = time.monotonic() + READY_TIMEOUT_SECONDS
        while not self.ready():
            if time.monotonic() > until:
                raise SystemExit(f"{self.name} is not ready after {READY_TIMEOUT_SECONDS:.0f} s")
            time.sleep(0.1)

    def fill(self, objects: Sequence[Object]) -> None:
        """Adds them to what is there."""
        raise NotImplementedError

    def stop(self) -> None:
        raise NotImplementedError

    def start(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


class FakeServer(Server):
    """Answers from memory; its figures say something about clients beside each other, nothing about a real server."""

    name = "the tests' fake API server in Python (no KUBE_APISERVER_BINARY given): compare the rows, ignore the amounts"
    ready_path = PATHS["Node"]

    def __init__(self, work: Path, address: str, port: int) -> None:
        self.url = f"http://{address}:{port}"
        self._work, self._address, self._port = work, address, port
        self._process: subprocess.Popen[bytes] | None = None
        self._objects: list[Object] = []

    def fill(self, objects: Sequence[Object]) -> None:
        self.close()
        self._objects += objects
        path = self._work / "objects.json"
        path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": self._objects}))
        command = [sys.executable, "-m", "bench.apiserver", str(path), self._address, str(self._port)]
        self._process = subprocess.Popen(command, stdout=(self._work / "api.log").open("wb"))
        self.pid = self._process.pid
        self.wait_until_ready()

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGUSR1)

    def start(self) -> None:
        os.kill(self.pid, signal.SIGUSR2)

    def close(self) -> None:
        if self._process is not None:
            _ended(self._process)


class RealServer(Server):
    """kube-apiserver over an etcd of its own, everything below one directory."""

    ready_path = "/readyz"

    def __init__(self, binary: str, work: Path, address: str, port: int) -> None:
        if shutil.which("etcd") is None:
            raise SystemExit("etcd is needed beside KUBE_APISERVER_BINARY: install the package etcd-server")
        version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
        self.name = f"kube-apiserver {version.split()[-1]} with etcd, over TLS"
        self.url = f"https://{address}:{port}"
        self._work = work
        key = work / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        (work / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        clients, peers = (f"http://127.0.0.1:{number}" for number in ETCD_PORTS)
        etcd = ["etcd", f"--data-dir={work / 'etcd'}", f"--listen-client-urls={clients}", "--log-level=error"]
        etcd += [f"--advertise-client-urls={clients}", f"--listen-peer-urls={peers}", "--unsafe-no-fsync"]
        self._etcd = self._launched(etcd, "etcd.log")
        self._command = [
            *(binary, f"--etcd-servers={clients}", f"--secure-port={port}", f"--bind-address={address}"),
            *(
                f"--advertise-address={address}",
                f"--cert-dir={work}",
                f"--token-auth-file={work / 'tokens.csv'}",
            ),
            *(f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}"),
            *("--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC"),
            *("--service-cluster-ip-range=10.96.0.0/12", "--endpoint-reconciler-type=none"),
        ]
        self.start()
        self.wait_until_ready()

    def _launched(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        with (self._work / log).open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output)

    def fill(self, objects: Sequence[Object]) -> None:
        asyncio.run(self._create(objects))

    async def _create(self, objects: Sequence[Object]) -> None:
        waiting = iter(objects)
        async with session() as http:

            async def create_some() -> None:
                for item in waiting:
                    made = without_server_fields(item)
                    await asked(http, "POST", self.url + collection(item), made)
                    if item["kind"] == "Node":
                        path = f"{collection(item)}/{item['metadata']['name']}/status"
                        await asked(http, "PATCH", self.url + path, {"status": item["status"]})

            await asyncio.gather(*(create_some() for _ in range(MAX_CONCURRENT_REQUESTS)))

    def stop(self) -> None:
        """As a crash would: every connection breaks at once."""
        self._process.kill()
        self._process.wait()

    def start(self) -> None:
        self._process = self._launched(self._command, "api.log")
        self.pid = self._process.pid

    def close(self) -> None:
        _ended(self._process)
        _ended(self._etcd)


def trusting() -> ssl.SSLContext:
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers=HEADERS, connector=aiohttp.TCPConnector(ssl=trusting()))


async def asked(http: aiohttp.ClientSession, method: str, url: str, body: Object) -> None:
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    async with http.request(method, url, data=json.dumps(body), headers={"Content-Type": kind}) as answer:
        if answer.status >= 400:
            raise SystemExit(f"{method} {url}: HTTP {answer.status}: {(await answer.text())[:300]}")
        await answer.read()


def collection(item: Object) -> str:
    """The path of the collection that an object belongs to."""
    path, namespace = PATHS[item["kind"]], item["metadata"].get("namespace")
    start, _, plural = path.rpartition("/")
    return f"{start}/namespaces/{namespace}/{plural}" if namespace else path


def without_server_fields(item: Object) -> Object:
    """Return the object as a client would create it."""
    metadata = {k: v for k, v in item["metadata"].items() if k not in DECIDED_BY_THE_SERVER}
    return {**item, "metadata": metadata}


def _ended(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


@contextlib.contextmanager
def api_server(work: Path, address: str, port: int) -> Iterator[Server]:
    binary = os.environ.get("KUBE_APISERVER_BINARY", "")
    server = RealServer(binary, work, address, port) if binary else FakeServer(work, address, port)
    try:
        yield server
    finally:
        server.close()


async def _serve_fake(objects: Object, address: str, port: int) -> None:
    server = FakeApiServer(host=address, port=port)
    server.load(objects)
    wanted = asyncio.Queue[bool]()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, wanted.put_nowait, False)
    loop.add_signal_handler(signal.SIGUSR2, wanted.put_nowait, True)
    await server.start()
    while True:
        await (server.start() if await wanted.get() else server.stop())


if __name__ == "__main__":
    asyncio.run(_serve_fake(json.loads(Path(sys.argv[1]).read_bytes()), sys.argv[2], int(sys.argv[3])))
