"""Laws of iptables syncs: any order of changes leads to the same tables, and a rejected service port harms no other."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.factory import endpoint, plan, service_port
from tests.golden.compare_iptables import differences
from tests.unit.backends.iptables.test_iptables_backend import IptablesHarness

from pointsman.backends.contract import SyncRequest
from pointsman.errors import KernelError
from pointsman.kernel.command import CommandResult
from pointsman.model.addresses import cidr_from_text
from pointsman.model.plan import ServicePlan

SERVICES = ("alpha", "beta", "gamma")


@st.composite
def plans(draw: st.DrawFn, name: str) -> ServicePlan:
    index = SERVICES.index(name) + 1
    port = service_port(
        name,
        cluster_ip=f"10.96.0.{index}",
        node_port=draw(st.sampled_from([0, 30000 + index])),
        external_ips=draw(st.sampled_from([[], [f"198.51.100.{index}"]])),
        load_balancer_ips=draw(st.sampled_from([[], [f"203.0.113.{index}"]])),
        source_ranges=draw(st.sampled_from([(), (cidr_from_text("192.0.2.0/24"),)])),
        ranges_everywhere=draw(st.booleans()),
        internal_local=draw(st.booleans()),
        external_local=draw(st.booleans()),
        affinity_seconds=draw(st.sampled_from([0, 60])),
        health_check_node_port=draw(st.sampled_from([0, 32000 + index])),
    )
    numbers = draw(st.sets(st.integers(1, 5), max_size=4))
    endpoints = [endpoint(f"10.244.{index}.{number}", local=number % 2 == 0) for number in numbers]
    return plan(port, *endpoints)


@st.composite
def histories(draw: st.DrawFn) -> list[dict[str, ServicePlan | None]]:
    """Rounds of changes: per round, some services get a new plan or go."""
    rounds = draw(st.lists(st.sets(st.sampled_from(SERVICES)), min_size=1, max_size=6))
    return [{name: draw(st.none() | plans(name)) for name in sorted(changed)} for changed in rounds]


class History(IptablesHarness):
    """A backend over tables in memory that goes through changes."""

    def change(self, changes: dict[str, ServicePlan | None], *, full: bool = False) -> None:
        named = {service_port(name).name: made for name, made in changes.items()}
        for name, made in named.items():
            self.plans.pop(name, None)
            if made is not None:
                self.plans[name] = made
        self.backend.sync(SyncRequest(self.context, self.plans, named, full))

    def saved(self) -> str:
        return "".join(self.tables.saved(table) for table in self.tables.tables)

    def wrong(self) -> list[str]:
        """Return how the tables differ from those of a new node that got the same plans at once."""
        with tempfile.TemporaryDirectory() as directory:
            fresh = History(Path(directory))
            fresh.plans = dict(self.plans)
            fresh.change({}, full=True)
        return differences(fresh.saved(), self.saved())


@settings(deadline=None, max_examples=50)
@given(histories())
def test_small_steps_lead_where_one_big_one_leads(history: list[dict[str, ServicePlan | None]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        node = History(Path(directory))
        for changes in history:
            node.change(changes)
        assert node.wrong() == []


@settings(deadline=None, max_examples=50)
@given(histories(), st.data())
def test_failed_syncs_in_between_lose_nothing(
    history: list[dict[str, ServicePlan | None]], data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        node = History(Path(directory))
        for changes in history:
            if data.draw(st.booleans(), label="fails"):
                node.tables.before_restore = lambda text: CommandResult(-9)
                try:
                    node.change(changes)
                except KernelError:
                    changes = {}
                node.tables.before_restore = lambda text: None
            node.change(changes)
        assert node.wrong() == []


@settings(deadline=None, max_examples=50)
@given(histories(), st.sampled_from(SERVICES))
def test_a_rejected_service_never_harms_the_others(
    history: list[dict[str, ServicePlan | None]], rejected: str
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        node = History(Path(directory))
        node.change({"innocent": plan(service_port("innocent"), endpoint("10.244.9.1"))})
        node.tables.refuses = lambda line: f"default/{rejected}:" in line
        for changes in history:
            node.change(changes)
        node.plans.pop(service_port(rejected).name, None)
        assert node.wrong() == []
