"""Every few seconds a connection through a Service address of our own, by the real rules, to this process and back.

It proves that this node's packets are translated, which no look at the rules can: a foreign table may drop them, or
connection tracking may be full. The listener is at an address of the node's own and answers nobody else: connections from other
machines are closed at once. The result is a check of /readyz and a line in `status`; a restart would mend nothing, so it is
no part of /livez, and load balancers are not asked to decide by it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

import msgspec

from pointsman.conditions import Blocks, Condition
from pointsman.explain.service_port import Explanation
from pointsman.explain.target import Target, target_from_text
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

PERIOD: Final = 5.0
PATIENCE: Final = 2.0
_QUESTION_BYTES: Final = 16
CAUSE_PATIENCE: Final = 10.0
_CAUSE_LASTS: Final = 60.0
"""Seconds. Looking for a cause reads the rules of everybody on this host, and may wait for a worker that never comes back."""

Explain = Callable[[Target], Awaitable[Explanation]]

_log = get_log(__name__)

PROBE_NAMESPACE = "pointsman.dev"
"""No namespace of a cluster can have a dot in its name, so no Service of others is ever meant."""
PROBE_NAME = "datapath-probe"
PROBE_KEY = f"{PROBE_NAMESPACE}/{PROBE_NAME}"
PROBE_PORT = 7
_LATEST_CREATION_TIME = "9999-12-31T23:59:59Z"
"""The older Service wins a contested address: any other."""


class _Echo(msgspec.Struct):
    """The listener of one IP family."""

    address: bytes
    server: asyncio.Server
    port: int


class _Guess(msgspec.Struct, frozen=True):
    """What may be the cause of some trouble, as of a moment ago."""

    trouble: str
    words: str
    until: float


class SelfProbe:
    """Probes all IP families that have a probe address, until cancelled."""

    def __init__(
        self,
        proxy: Proxy,
        addresses: Mapping[Family, bytes],
        explain: Explain,
        *,
        period: float = PERIOD,
        patience: float = PATIENCE,
        cause_patience: float = CAUSE_PATIENCE,
    ) -> None:
        """`explain` says what may be the cause when a connection fails."""
        self._proxy, self._explain = proxy, explain
        self._addresses = {
            family: address for family, address in addresses.items() if family in proxy.families
        }
        self._period, self._patience, self._cause_patience = period, patience, cause_patience
        self._echoes: dict[Family, _Echo] = {}
        self._guesses: dict[Family, _Guess] = {}
        self._conditions: dict[Family, Condition] = {}
        proxy.board.add_source("datapath", self.conditions)
        for family in self._addresses:
            type_, message = f"Datapath{family.value}", "not probed yet"
            unknown = Condition.unknown(type_, "NotProbedYet", message, blocks=Blocks.READINESS)
            self._conditions[family] = unknown
            for result in ("success", "failure"):
                proxy.metrics.process.datapath_probes.labels(ip_family=family.value, result=result)

    async def run(self) -> None:
        """Never returns; a probe that cannot be made counts as one that failed."""
        if not self._addresses:
            await asyncio.Event().wait()
        self._proxy.add(build_probe_service(self._addresses.values()))
        try:
            while True:
                for family in self._addresses:
                    await self._probe(family)
                await asyncio.sleep(self._period)
        finally:
            for echo in self._echoes.values():
                echo.server.close()

    async def _probe(self, family: Family) -> None:
        """What came of it is told first: a cause that cannot be found must hide nothing."""
        premature = False
        try:
            await self._listen(family)
            premature = self._rules_awaited(family)
            trouble = await self._connection_trouble(family)
        except OSError as error:
            trouble = f"no listener of our own could be opened: {error.strerror or error}"
        if trouble and (premature or self._rules_awaited(family)):
            return  # a late sync is reported elsewhere
        result = "failure" if trouble else "success"
        self._proxy.metrics.process.datapath_probes.labels(ip_family=family.value, result=result).inc()
        self._note(family, trouble)
        if trouble:
            self._note(family, f"{trouble}; {await self._likely_cause(family, trouble)}")
        else:
            self._guesses.pop(family, None)

    def conditions(self) -> Iterable[Condition]:
        return self._conditions.values()

    def _note(self, family: Family, trouble: str) -> None:
        type_ = self._conditions[family].type
        self._conditions[family] = (
            Condition.false(type_, "ProbeFailed", trouble, blocks=Blocks.READINESS)
            if trouble
            else Condition.true(type_, Blocks.READINESS)
        )

    def _rules_awaited(self, family: Family) -> bool:
        """Whether the rules of the probe's own Service are on their way; other Services may change all the time."""
        return self._proxy.families[family].has_pending(PROBE_KEY)

    async def _listen(self, family: Family) -> None:
        """Have a listener at an address of the node; a new one when that address is gone."""
        own = self._proxy.node.addresses[family]
        echo = self._echoes.get(family)
        if echo is not None:
            if echo.address in own:
                return
            del self._echoes[family]
            echo.server.close()
        usable = next((address for address in own if find_unusable_reason(address) is None), None)
        if usable is None:
            raise OSError(f"this node has no {family.value} address")
        server = await asyncio.start_server(self._echo, address_text(usable), 0)
        port = server.sockets[0].getsockname()[1]
        self._echoes[family] = _Echo(usable, server, port)
        self._proxy.add(build_probe_slice(family, usable, port, self._proxy.node.name))

    async def _connection_trouble(self, family: Family) -> str:
        place = address_text(self._addresses[family])
        question = os.urandom(_QUESTION_BYTES)
        try:
            async with asyncio.timeout(self._patience):
                reader, writer = await asyncio.open_connection(place, PROBE_PORT)
                try:
                    writer.write(question)
                    answer = await reader.readexactly(_QUESTION_BYTES)
                finally:
                    writer.close()
        except TimeoutError:
            return f"no answer from {place} within {self._patience:g} s"
        except (OSError, EOFError) as error:
            number = getattr(error, "errno", None)
            return f"{place}: {os.strerror(number) if number else error}"
        return "" if answer == question else f"{place} is answered by somebody else"

    async def _echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send back what this node asks, once."""
        peername = writer.get_extra_info("peername")  # None when the client is gone already
        peer = address_from_text(peername[0]) if peername else None
        try:
            if peer is not None and peer in self._proxy.node.addresses[family_of(peer)]:
                async with asyncio.timeout(self._patience):
                    writer.write(await reader.readexactly(_QUESTION_BYTES))
                    await writer.drain()
        except (TimeoutError, OSError, EOFError) as error:
            _log.info("A connection to the datapath probe ended early", v=4, err=error)
        finally:
            writer.close()

    async def _likely_cause(self, family: Family, trouble: str) -> str:
        """Looked for when the trouble is new, and now and then while it lasts."""
        now, known = asyncio.get_running_loop().time(), self._guesses.get(family)
        if known is None or known.trouble != trouble or now > known.until:
            try:
                async with asyncio.timeout(self._cause_patience):
                    words = await self._cause_found(family)
            except TimeoutError:
                words = f"its cause was not found within {self._cause_patience:g} s"
            except Exception as error:  # noqa: BLE001 a guess that goes wrong must not end the proxy
                _log.exception("The cause of a failed probe could not be looked for", err=error)
                words = "its cause could not be looked for; see the log"
            known = self._guesses[family] = _Guess(trouble, words, now + _CAUSE_LASTS)
        return known.words

    async def _cause_found(self, family: Family) -> str:
        explanation = await self._explain(target_from_text(PROBE_KEY))
        ports = [port for port in explanation.ports if port.family == family.value]
        findings = (*explanation.findings, *(finding for port in ports for finding in port.findings))
        for finding in sorted(findings, key=lambda finding: not finding.is_error):
            remedy = f" ({finding.remedy})" if finding.remedy else ""
            return f"likely cause: {finding.message}{remedy}"
        if any(port.kernel.differences for port in ports):
            return "likely cause: the kernel does not hold our rules as written"
        return "no cause is seen in our rules or on this host; does a route lead to that address?"


def build_probe_service(addresses: Iterable[bytes]) -> Service:
    """The Service with these cluster IPs, at most one of each IP family."""
    texts = [address_text(address) for address in addresses]
    return Service(
        Meta(name=PROBE_NAME, namespace=PROBE_NAMESPACE, creation_timestamp=_LATEST_CREATION_TIME),
        ServiceSpec(cluster_ip=texts[0], cluster_ips=texts, ports=[ServicePortSpec(port=PROBE_PORT)]),
    )


def build_probe_slice(family: Family, endpoint: bytes, port: int, node: str) -> EndpointSlice:
    """Its only endpoint: this process, at an address of the node's own."""
    meta = Meta(
        name=f"{PROBE_NAME}-{family.value.lower()}",
        namespace=PROBE_NAMESPACE,
        labels={SERVICE_NAME_LABEL: PROBE_NAME},
    )
    only = SliceEndpoint(addresses=[address_text(endpoint)], node_name=node)
    return EndpointSlice(meta, family.value, [only], [SlicePort(name="", protocol="TCP", port=port)])
