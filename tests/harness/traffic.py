"""Traffic that a test makes up, in place of the kernel's counters and flows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

from tests.factory import packed

from pointsman.backends.contract import Count, Counting
from pointsman.errors import KernelError
from pointsman.explain.service_port import Identity
from pointsman.kernel.flow_count import FlowCount
from pointsman.model.addresses import split_host_port
from pointsman.report.traffic import Places, Reading

Endpoint = tuple[str, str]
"""`namespace/name` of a Service, and `ip:port`."""


class ScriptedTraffic:
    """Reads what a test put in."""

    def __init__(self) -> None:
        self.connections: Counter[Endpoint] = Counter()
        """All so far."""
        self.open: Counter[Endpoint] = Counter()
        self.bytes: Counter[str] = Counter()
        """By Service."""
        self.readings = 0
        self.failure: KernelError | None = None
        self.before_reading: Callable[[], None] = lambda: None

    def read(self, places: Places, _counting: Counting, _max_flows: int) -> Reading:
        self.before_reading()
        self.readings += 1
        if self.failure is not None:
            raise self.failure
        counts: dict[str, list[Count]] = {}
        flows: dict[str, FlowCount[Identity]] = {}
        for family, owners in places.owners.items():
            counts[family] = []
            flows[family] = FlowCount(owners, places.has_endpoint)
            keys = {owner[0]: (key, owner) for key, owner in reversed(list(owners.items()))}
            for (service, endpoint), number in self.connections.items():
                if service in keys and (endpoint.count(":") > 1) == (family == "IPv6"):
                    protocol, address, port = keys[service][0]
                    counts[family].append(Count(protocol, address, port, number, endpoint))
            for service, ((protocol, address, port), _) in keys.items():
                total = sum(number for (name, _), number in self.connections.items() if name == service)
                counts[family].append(Count(protocol, address, port, total, bytes=self.bytes[service]))
            for (service, endpoint), number in self.open.items():
                host, number_text = split_host_port(endpoint) or ("", "")
                if service in keys:
                    flows[family].open[keys[service][1], (packed(host), int(number_text))] = number
        return Reading(time.monotonic(), counts, flows)
