"""One API server for a fleet: kube-apiserver where KUBE_APISERVER_BINARY names one, else the tests' fake one.

The real one has an etcd of its own: ETCD_BINARY, or the one in the PATH.

`python -m bench.apiserver OBJECTS ADDRESS PORT LISTS` is the fake one as a process: SIGUSR1 takes it off the network, SIGUSR2 brings it back
with everything it remembered, as etcd would for a real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import json
import os
import shutil
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from bench.network import SERVER_ADDRESS, SERVER_PORT, Network
from bench.objects import encode_slice
from tests.fake.apiserver import FakeApiServer
from tests.fake.apistore import PATHS

from pointsman.kube.protobuf import PROTOBUF

STREAMED, PAGED = "streamed", "paged"
"""How lists are sent: as a watch, or page by page as older servers do."""
TOKEN = "fleet"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
ETCD_PORTS = (12379, 12380)
MAX_CONCURRENT_REQUESTS = 20
READY_TIMEOUT_SECONDS = 300.0
STOP_TIMEOUT_SECONDS = 15.0
OVERLOADED, ALREADY_THERE = (429, 503, 504), 409
"""Statuses: of a server that may have done what was asked, and of one that did it at the attempt before."""
MAX_ATTEMPTS, RETRY_SECONDS = 10, 1.0
DECIDED_BY_THE_SERVER = ("uid", "resourceVersion", "creationTimestamp", "generation")

Object = dict[str, Any]


class Server:
    """A running server. `pid` is the process whose time and memory count."""

    url: str
    name: str
    pid: int
    ready_path: str
    ca: Path | None = None

    def render_kubeconfig(self) -> str:
        """The text of a kubeconfig for it."""
        trust = {"certificate-authority": str(self.ca)} if self.ca else {}
        return render_kubeconfig(self.url, trust)

    def __init__(self) -> None:
        self._generations: Counter[int] = Counter()

    def change_endpoints(
        self, services: int, endpoints: int, rate: float, count: int, first: int = 0
    ) -> None:
        """Change one endpoint of one Service after the other; with rate 0 as fast as possible."""
        asyncio.run(self._change_endpoints(services, endpoints, rate, count, first))

    async def _change_endpoints(
        self, services: int, endpoints: int, rate: float, count: int, first: int
    ) -> None:
        numbers = iter(range(count))
        began = time.monotonic()

        async def change_some() -> None:
            for number in numbers:
                if rate:
                    await asyncio.sleep(max(0.0, began + number / rate - time.monotonic()))
                await self._put_slice(http, 1 + (first + number) * 97 % services, endpoints)

        async with open_session() as http:
            await asyncio.gather(*(change_some() for _ in range(MAX_CONCURRENT_REQUESTS)))

    async def _put_slice(self, http: aiohttp.ClientSession, index: int, endpoints: int) -> None:
        """Replace the first endpoint of a Service, now being the trigger time."""
        self._generations[index] = 1 + self._generations[index] % 4
        item = json.loads(encode_slice(index, endpoints, self._generations[index]))
        now = dt.datetime.now(dt.UTC).isoformat().replace("+00:00", "Z")
        item["metadata"]["annotations"] = {"endpoints.kubernetes.io/last-change-trigger-time": now}
        path = f"{find_collection(item)}/{item['metadata']['name']}"
        await send_object(http, "PUT", self.url + path, drop_server_fields(item))

    def ready(self) -> bool:
        request = urllib.request.Request(self.url + self.ready_path, headers=HEADERS)
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=create_tls())
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

    def __init__(self, work: Path, address: str, port: int, lists: str) -> None:
        super().__init__()
        self.url = f"http://{address}:{port}"
        self._work, self._arguments = work, [address, str(port), lists]
        self._process: subprocess.Popen[bytes] | None = None
        self._objects: list[Object] = []

    def fill(self, objects: Sequence[Object]) -> None:
        self.close()
        self._objects += objects
        path = self._work / "objects.json"
        path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": self._objects}))
        command = [sys.executable, "-m", "bench.apiserver", str(path), *self._arguments]
        self._process = subprocess.Popen(command, stdout=(self._work / "api.log").open("wb"))
        self.pid = self._process.pid
        self.wait_until_ready()
        for kind in ("Service", "EndpointSlice"):  # the server encodes its objects once
            request = urllib.request.Request(self.url + PATHS[kind], headers={"Accept": PROTOBUF})
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).read()

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

    def __init__(self, binary: str, work: Path, address: str, port: int, lists: str) -> None:
        super().__init__()
        etcd_binary = os.environ.get("ETCD_BINARY") or shutil.which("etcd")
        if etcd_binary is None:
            raise SystemExit(
                "kube-apiserver needs an etcd: set ETCD_BINARY, or install the package etcd-server"
            )
        version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
        self.url = f"https://{address}:{port}"
        self._work = work
        key = work / "sa.key"
        subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
        (work / "tokens.csv").write_text(f"{TOKEN},admin,admin,system:masters\n")
        clients, peers = (f"http://127.0.0.1:{number}" for number in ETCD_PORTS)
        etcd = [
            etcd_binary,
            f"--data-dir={work / 'etcd'}",
            f"--listen-client-urls={clients}",
            "--log-level=error",
        ]
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
            f"--feature-gates=WatchList={str(lists == STREAMED).lower()}",
        ]
        self.name = "kube-apiserver"
        self.start()
        self.wait_until_ready()
        with urllib.request.urlopen(f"{clients}/version", timeout=5) as answer:
            etcd_version = json.load(answer)["etcdserver"]
        self.name = f"kube-apiserver {version.split()[-1]} with etcd {etcd_version}, over TLS"
        self.ca = work / "apiserver.crt"

    def _launched(self, command: list[str], log: str) -> subprocess.Popen[bytes]:
        with (self._work / log).open("ab") as output:
            return subprocess.Popen(command, stdout=output, stderr=output)

    def fill(self, objects: Sequence[Object]) -> None:
        asyncio.run(self._create(objects))

    async def _create(self, objects: Sequence[Object]) -> None:
        waiting = iter(objects)
        async with open_session() as http:

            async def create_some() -> None:
                for item in waiting:
                    made = drop_server_fields(item)
                    await send_object(http, "POST", self.url + find_collection(item), made)
                    if item["kind"] == "Node":
                        path = f"{find_collection(item)}/{item['metadata']['name']}/status"
                        await send_object(http, "PATCH", self.url + path, {"status": item["status"]})

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


def render_kubeconfig(url: str, trust: Mapping[str, object] | None = None) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "c", "cluster": {"server": url, **(trust or {})}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }
    )


def create_tls() -> ssl.SSLContext:
    tls = ssl.create_default_context()
    tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    return tls


def open_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(headers=HEADERS, connector=aiohttp.TCPConnector(ssl=create_tls()))


async def send_object(http: aiohttp.ClientSession, method: str, url: str, body: Object) -> None:
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    for attempt in range(1, MAX_ATTEMPTS + 1):
        async with http.request(method, url, data=json.dumps(body), headers={"Content-Type": kind}) as answer:
            text = await answer.text()
        if answer.status < 400 or (answer.status == ALREADY_THERE and attempt > 1):
            return
        if answer.status not in OVERLOADED:
            break
        await asyncio.sleep(attempt * RETRY_SECONDS)
    raise SystemExit(f"{method} {url}: HTTP {answer.status}: {text[:300]}")


def find_collection(item: Object) -> str:
    """The path of the collection that an object belongs to."""
    path, namespace = PATHS[item["kind"]], item["metadata"].get("namespace")
    start, _, plural = path.rpartition("/")
    return f"{start}/namespaces/{namespace}/{plural}" if namespace else path


def drop_server_fields(item: Object) -> Object:
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
def run_server(lists: str = STREAMED) -> Iterator[tuple[Server, Network, Path]]:
    """An API server in the control plane of a network, whose namespace the block runs in, and a directory."""
    binary = os.environ.get("KUBE_APISERVER_BINARY", "")
    with tempfile.TemporaryDirectory() as directory, Network() as network, network.control.entered():
        work = Path(directory)
        place = work, SERVER_ADDRESS, SERVER_PORT, lists
        server = RealServer(binary, *place) if binary else FakeServer(*place)
        try:
            yield server, network, work
        finally:
            server.close()


async def _serve_fake(objects: Object, address: str, port: int, lists: str) -> None:
    server = FakeApiServer(host=address, port=port, watch_list=lists == STREAMED)
    server.load(objects)
    wanted = asyncio.Queue[bool]()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, wanted.put_nowait, False)
    loop.add_signal_handler(signal.SIGUSR2, wanted.put_nowait, True)
    await server.start()
    while True:
        await (server.start() if await wanted.get() else server.stop())


if __name__ == "__main__":
    asyncio.run(
        _serve_fake(json.loads(Path(sys.argv[1]).read_bytes()), sys.argv[2], int(sys.argv[3]), sys.argv[4])
    )
