"""A Service that changes at random in every way that matters to packets. Pure: a seed gives the same history again."""

from __future__ import annotations

from random import Random

import msgspec

from pointsman.lab.objects import TARGET_PORT, Backend, LabService

OTHER_TARGET_PORT = TARGET_PORT + 1
HOSTS = ("pod1", "pod2", "pod4", "pod5", "n1")
"""Three of this node, two of the other."""
STATES: tuple[dict[str, bool], ...] = (
    *[{"ready": True}] * 4,
    {"ready": True, "serving": False},
    {"ready": False, "serving": False},
    {"ready": False, "serving": True, "terminating": True},
    {"ready": False, "serving": False, "terminating": True},
)


def answering(service: LabService | None) -> frozenset[str]:
    """Who may answer a client: endpoints that packets are sent to, and those that keep what they have."""
    if service is None:
        return frozenset()
    return frozenset(
        backend.host
        for backend in service.backends
        if backend.conditions is None
        or backend.conditions["ready"]
        or backend.conditions.get("serving", True)
    )


class RandomService:
    """The Service as it is now; None while it is deleted."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._kept = LabService("busy", 1, protocols=("UDP",))
        self.now: LabService | None = None
        for change in (self._endpoints, self._type, self._policies):
            self._kept = change(self._kept)
        self.now = self._kept

    def change(self, *, of_endpoints: bool) -> LabService | None:
        """One change, of endpoints only or of any kind; what was deleted comes back."""
        if self.now is None:
            self.now = self._kept
            return self.now
        if of_endpoints:
            self._kept = self._random.choice((self._endpoints, self._state, self._state))(self.now)
        elif self._random.random() < 0.1:
            self.now = None
            return None
        else:
            self._kept = self._random.choice((self._state, self._policies, self._type, self._ports))(self.now)
        self.now = self._kept
        return self.now

    def _endpoints(self, service: LabService) -> LabService:
        hosts = self._random.sample(HOSTS, self._random.randrange(len(HOSTS)))
        port = self._random.choice((TARGET_PORT, OTHER_TARGET_PORT))
        made = tuple(Backend(host, self._random.choice(STATES), port=port) for host in sorted(hosts))
        return msgspec.structs.replace(service, backends=made)

    def _state(self, service: LabService) -> LabService:
        """One endpoint changes; the way a rollout looks."""
        if not service.backends:
            return self._endpoints(service)
        backends = list(service.backends)
        at = self._random.randrange(len(backends))
        backends[at] = msgspec.structs.replace(backends[at], conditions=self._random.choice(STATES))
        return msgspec.structs.replace(service, backends=tuple(backends))

    def _policies(self, service: LabService) -> LabService:
        policies = ("Cluster", "Local")
        return msgspec.structs.replace(
            service,
            internal_policy=self._random.choice(policies),
            external_policy=self._random.choice(policies),
            affinity_seconds=self._random.choice((0, 0, 60)),
        )

    def _type(self, service: LabService) -> LabService:
        return msgspec.structs.replace(
            service,
            type=self._random.choice(("ClusterIP", "NodePort", *["LoadBalancer"] * 4)),
            external=self._random.random() < 0.7,
        )

    def _ports(self, service: LabService) -> LabService:
        return msgspec.structs.replace(
            service, ports=self._random.choice(((80,), (80,), (80,), (81,), (80, 81), (81, 80)))
        )
