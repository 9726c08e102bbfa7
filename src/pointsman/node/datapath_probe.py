"""The datapath probe: every few seconds a connection through a Service address of our own to this process and back.

It proves that this node's packets are translated, which reading the rules cannot: a table of another program may drop them, or
connection tracking may be full. The listener is at an address of this node and answers this node only: connections from other
machines are closed at once. The result is a condition that blocks readiness, neither liveness (a restart would not help) nor traffic.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import msgspec

from pointsman.conditions import Blocks, Condition
from pointsman.explain.service_port import Explanation
from pointsman.explain.target import Target, parse_target
from pointsman.model.addresses import Family, address_from_text, address_text, family_of, find_unusable_reason
from pointsman.model.objects import (
    SERVICE_NAME_LABEL,
    EndpointSlice,
    Meta,
    Service,
    ServicePortSpec,
    ServiceSpec,
    SliceEndpoint,
    SlicePort,
)
from pointsman.node.proxy import Proxy
from pointsman.obs.log import get_log

PROBE_INTERVAL_SECONDS: Final = 5.0
PROBE_TIMEOUT_SECONDS: Final = 2.0
CAUSE_TIMEOUT_SECONDS: Final = 10.0
_CAUSE_LIFETIME_SECONDS: Final = 60.0
"""Finding a cause reads the rules of all programs on this host, and may wait for a worker thread that hangs."""
_NONCE_BYTES: Final = 16

Explain = Callable[[Target], Awaitable[Explanation]]

_log = get_log(__name__)

PROBE_NAMESPACE = "pointsman.dev"
"""No namespace of a cluster can have a dot in its name, so no Service of others is ever meant."""
PROBE_NAME = "datapath-probe"
PROBE_KEY = f"{PROBE_NAMESPACE}/{PROBE_NAME}"
PROBE_PORT = 7
_LATEST_CREATION_TIME = "9999-12-31T23:59:59Z"
"""The older Service wins a contested address: any other."""


class _Cause(msgspec.Struct, frozen=True):
    """The likely cause of a failure, valid until a point in time."""

    failure: str
    text: str
    until: float


class DatapathProbe:
    """Probes all IP families that have a probe address, until cancelled."""

    def __init__(
        self,
        proxy: Proxy,
        addresses: Mapping[Family, bytes],
        explain: Explain,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        timeout: float = PROBE_TIMEOUT_SECONDS,
        cause_timeout: float = CAUSE_TIMEOUT_SECONDS,
    ) -> None:
        """`explain` finds the likely cause when a connection fails."""
        self._proxy, self._explain = proxy, explain
        self._addresses = {
            family: address for family, address in addresses.items() if family in proxy.families
        }
        self._sleep, self._timeout, self._cause_timeout = sleep, timeout, cause_timeout
        self._listeners: dict[Family, tuple[bytes, asyncio.Server]] = {}
        """With their addresses."""
        self._causes: dict[Family, _Cause] = {}
        self._conditions: dict[Family, Condition] = {}
        proxy.board.add_source("datapath", self.conditions)
        for family in self._addresses:
            type_, message = f"Datapath{family.value}", "not probed yet"
            unknown = Condition.unknown(type_, "NotProbedYet", message, blocks=Blocks.READINESS)
            self._conditions[family] = unknown
            for result in ("success", "failure"):
                proxy.metrics.process.datapath_probes.labels(ip_family=family.value, result=result)

    async def run(self) -> None:
        """Probe until cancelled; a probe that cannot be made counts as failed."""
        if not self._addresses:
            await asyncio.Event().wait()
        self._proxy.add(build_probe_service(self._addresses.values()))
        try:
            while True:
                for family in self._addresses:
                    await self._probe(family)
                await self._sleep(PROBE_INTERVAL_SECONDS)
        finally:
            for _, server in self._listeners.values():
                server.close()

    async def _probe(self, family: Family) -> None:
        """Probe once. The result is published before its cause is searched for, which may take long."""
        is_early = False
        try:
            await self._listen(family)
            is_early = self._has_pending_rules(family)
            failure = await self._connect(family)
        except OSError as error:
            failure = f"the probe's listener could not be opened: {error.strerror or error}"
        if failure and (is_early or self._has_pending_rules(family)):
            return  # a late sync is reported elsewhere
        result = "failure" if failure else "success"
        self._proxy.metrics.process.datapath_probes.labels(ip_family=family.value, result=result).inc()
        self._note(family, failure)
        if failure:
            self._note(family, f"{failure}; {await self._describe_cause(family, failure)}")
        else:
            self._causes.pop(family, None)

    def conditions(self) -> Iterable[Condition]:
        return self._conditions.values()

    def _note(self, family: Family, failure: str) -> None:
        type_ = self._conditions[family].type
        self._conditions[family] = (
            Condition.false(type_, "ProbeFailed", failure, blocks=Blocks.READINESS)
            if failure
            else Condition.true(type_, Blocks.READINESS)
        )

    def _has_pending_rules(self, family: Family) -> bool:
        """Return whether the rules of the probe's own Service are pending; other Services may change all the time."""
        return self._proxy.families[family].has_pending(PROBE_KEY)

    async def _listen(self, family: Family) -> None:
        """Keep a listener at an address of this node; open a new one when that address is removed."""
        own = self._proxy.node.addresses[family]
        if family in self._listeners:
            address, server = self._listeners[family]
            if address in own:
                return
            del self._listeners[family]
            server.close()
        usable = next((address for address in own if find_unusable_reason(address) is None), None)
        if usable is None:
            raise OSError(f"this node has no {family.value} address")
        server = await asyncio.start_server(self._echo, address_text(usable), 0)
        port = server.sockets[0].getsockname()[1]
        self._listeners[family] = usable, server
        self._proxy.add(build_probe_slice(family, usable, port, self._proxy.node.name))

    async def _connect(self, family: Family) -> str:
        address = address_text(self._addresses[family])
        nonce = os.urandom(_NONCE_BYTES)
        try:
            async with asyncio.timeout(self._timeout):
                reader, writer = await asyncio.open_connection(address, PROBE_PORT)
                try:
                    writer.write(nonce)
                    answer = await reader.readexactly(_NONCE_BYTES)
                finally:
                    writer.close()
        except TimeoutError:
            return f"no answer from {address} within {self._timeout:g} s"
        except (OSError, EOFError) as error:
            number = getattr(error, "errno", None)
            return f"{address}: {os.strerror(number) if number else error}"
        return "" if answer == nonce else f"{address} is answered by another program"

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send back what this node sends, once."""
        peername = writer.get_extra_info("peername")  # None when the client has disconnected
        peer = address_from_text(peername[0]) if peername else None
        try:
            if peer is not None and peer in self._proxy.node.addresses[family_of(peer)]:
                async with asyncio.timeout(self._timeout):
                    writer.write(await reader.readexactly(_NONCE_BYTES))
                    await writer.drain()
        except (TimeoutError, OSError, EOFError) as error:
            _log.info("A connection to the datapath probe ended early", v=4, err=error)
        finally:
            writer.close()

    async def _describe_cause(self, family: Family, failure: str) -> str:
        """Describe the likely cause, searched for when the failure is new and once a minute while it lasts."""
        now, known = asyncio.get_running_loop().time(), self._causes.get(family)
        if known is None or known.failure != failure or now > known.until:
            try:
                async with asyncio.timeout(self._cause_timeout):
                    text = await self._find_cause(family)
            except TimeoutError:
                text = f"its cause was not found within {self._cause_timeout:g} s"
            except Exception as error:  # noqa: BLE001 the search must not end the proxy
                _log.exception("Cannot search for the cause of a failed probe", err=error)
                text = "the search for its cause failed; see the log"
            known = self._causes[family] = _Cause(failure, text, now + _CAUSE_LIFETIME_SECONDS)
        return known.text

    async def _find_cause(self, family: Family) -> str:
        explanation = await self._explain(parse_target(PROBE_KEY))
        ports = [port for port in explanation.ports if port.family == family.value]
        findings = (*explanation.findings, *(finding for port in ports for finding in port.findings))
        for finding in sorted(findings, key=lambda finding: not finding.is_error):
            remedy = f" ({finding.remedy})" if finding.remedy else ""
            return f"likely cause: {finding.message}{remedy}"
        if any(port.kernel.differences for port in ports):
            return "likely cause: the kernel does not hold our rules as written"
        return "no cause found in our rules or on this host; is there a route to that address?"


def build_probe_service(addresses: Iterable[bytes]) -> Service:
    """Return the Service with these cluster IPs, at most one of each IP family."""
    texts = [address_text(address) for address in addresses]
    return Service(
        Meta(name=PROBE_NAME, namespace=PROBE_NAMESPACE, creation_timestamp=_LATEST_CREATION_TIME),
        ServiceSpec(cluster_ip=texts[0], cluster_ips=texts, ports=[ServicePortSpec(port=PROBE_PORT)]),
    )


def build_probe_slice(family: Family, endpoint: bytes, port: int, node: str) -> EndpointSlice:
    """Return the slice with its only endpoint: this process, at an address of the node."""
    meta = Meta(
        name=f"{PROBE_NAME}-{family.value.lower()}",
        namespace=PROBE_NAMESPACE,
        labels={SERVICE_NAME_LABEL: PROBE_NAME},
    )
    only = SliceEndpoint(addresses=[address_text(endpoint)], node_name=node)
    return EndpointSlice(meta, family.value, [only], [SlicePort(name="", protocol="TCP", port=port)])
