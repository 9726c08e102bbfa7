"""The table's contents as last committed, and the batch that loads all of it at once. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pointsman.backends.nftables import schema, text
from pointsman.backends.nftables.balancers import (
    Balancer,
    add_spares,
    build_balancer_chain,
    list_needed,
)
from pointsman.backends.nftables.batch import (
    AddElements,
    AddSlots,
    Batch,
    Operation,
    Steps,
)
from pointsman.backends.nftables.fields import SLOT_LENGTH, find_traits, unpack_slot_number
from pointsman.backends.nftables.fragment import Element, Fragment, Pool, Slots
from pointsman.backends.nftables.schema import Chain, Data, FlowTimeout, SetSpec
from pointsman.model.node_context import NodeContext
from pointsman.model.service import ServicePortName


class Contents:
    """Everything in the table: the fixed part for a context, and the fragments of all service ports."""

    def __init__(self, context: NodeContext, *, counters: bool = False) -> None:
        self.context = context
        self.traits = find_traits(context.family)
        self.comment = schema.build_table_comment(counters=counters)
        self.sets = {spec.name: spec for spec in schema.build_static_sets(counters=counters)}
        self.fragments: dict[ServicePortName, Fragment] = {}
        self.with_chains: set[ServicePortName] = set()
        """Service ports with chains of their own."""
        self.steps = Steps(self.traits)
        self.shared: Counter[Element] = Counter()
        self.balancers: Counter[Balancer] = Counter()
        self.present: dict[Balancer, Chain] = {}
        """Balancer chains in the table: those in use and some spare ones."""
        self.timeout_users: Counter[FlowTimeout] = Counter()
        """How many service ports have each timeout."""
        self.timeouts: set[FlowTimeout] = set()
        """Their objects in the table, and those of balancer chains that are not in use."""
        self.verdicts: Counter[str] = Counter()
        """How many elements lead to each chain."""
        self.counts: Counter[str] = Counter()
        self._static_chains = schema.build_static_chains(context)
        self.node_port_addresses = [
            (Element(schema.NODEPORT_IPS, address), "")
            for address in schema.find_node_port_addresses(context)
        ]

    def load(self, fragments: Mapping[ServicePortName, Fragment]) -> None:
        """Start from nothing with these fragments."""
        self.fragments = dict(fragments)
        self.with_chains = {name for name, fragment in fragments.items() if fragment.chains}
        self.shared = Counter(e for fragment in fragments.values() for e in fragment.shared)
        self.balancers = Counter(b for fragment in fragments.values() for b in fragment.balancers)
        self.present = self.build_balancer_chains(add_spares(self.balancers))
        self.timeout_users = Counter(f.timeout for f in fragments.values() if f.timeout)
        self.timeouts = {*self.timeout_users}
        self.verdicts = Counter(
            e.chain for fragment in fragments.values() for e in fragment.elements if e.chain
        )
        self.counts = Counter(e.where for fragment in fragments.values() for e in fragment.elements)
        self.counts.update(element.where for element in self.shared)
        self.counts[schema.NODEPORT_IPS] += len(self.node_port_addresses)
        for fragment in fragments.values():
            for pool in fragment.pools:
                self.counts[pool.where] += pool.size

    # --- the whole table ------------------------------------------------------------------------------------

    def list_sets(self) -> Iterator[SetSpec]:
        yield from self.sets.values()
        for fragment in self._list_with_chains():
            yield from fragment.sets

    def list_chains(self) -> list[Chain]:
        """Return every chain, those that are jumped to before those that jump."""
        hooked = [chain for chain in self._static_chains if chain.hook is not None]
        plain = [chain for chain in self._static_chains if chain.hook is None]
        own = [chain for fragment in self._list_with_chains() for chain in fragment.chains]
        balancers = [self.present[balancer] for balancer in sorted(self.present, key=compute_balancer_order)]
        return [*plain, *balancers, *own, *hooked]

    def _list_with_chains(self) -> list[Fragment]:
        return [self.fragments[name] for name in sorted(self.with_chains)]

    def build_balancer_chains(self, balancers: Iterable[Balancer]) -> dict[Balancer, Chain]:
        ordered = sorted(balancers, key=compute_balancer_order)
        return {balancer: build_balancer_chain(balancer, self.context) for balancer in ordered}

    def list_elements(self) -> dict[str, list[tuple[Element, str]]]:
        """Return the elements of sets and verdict maps, by set, each with its label."""
        found: dict[str, list[tuple[Element, str]]] = {name: [] for name in self.sets}
        found[schema.NODEPORT_IPS].extend(self.node_port_addresses)
        for fragment in self.fragments.values():
            label = fragment.label
            for element in fragment.elements:
                found[element.where].append((element, label))
        for element in self.shared:
            found[element.where].append((element, ""))
        # Interval sets are listed in the order of insertion: keep listings equal for equal contents.
        found[schema.FIREWALL_ALLOW].sort(key=lambda entry: entry[0].key)
        return found

    def list_pools(self) -> dict[str, list[Pool]]:
        """Return the elements of endpoint maps, by map."""
        found: dict[str, list[Pool]] = {
            name: [] for name, spec in self.sets.items() if spec.data is Data.ENDPOINT
        }
        for fragment in self.fragments.values():
            for pool in fragment.pools:
                found[pool.where].append(pool)
        return found

    def list_keys(self) -> dict[str, list[bytes]]:
        """Return the keys of all elements, by set and map."""
        keys = {
            name: [element.key for element, _ in entries] for name, entries in self.list_elements().items()
        }
        for name, pools in self.list_pools().items():
            keys[name] = [key for pool in pools for key, _ in pool.iterate()]
        return keys

    def count_elements(self) -> dict[str, int]:
        """Return the number of elements per set and map."""
        return {name: self.counts[name] for name in self.sets}

    def build_full_batch(
        self,
        *,
        replace: bool,
        update: bool,
        stale_chains: Sequence[str] = (),
        stale_sets: Sequence[str] = (),
        stale_timeouts: Sequence[str] = (),
    ) -> Batch:
        """Return the batch that loads everything in one transaction.

        `replace` deletes a table of another make first; `update` empties our own table in place, keeping its
        base chains and affinity sets, so that no packet passes a half-filled table.
        """
        steps = self.steps
        chains = self.list_chains()
        operations: list[Operation] = []
        if replace:
            operations.append(steps.delete_table())
        operations.append(steps.add_table(self.comment))
        if update:
            operations.append(steps.flush_rules())
            operations += [steps.flush_set(spec) for spec in self.sets.values()]
            operations += [steps.delete_set(name) for name in stale_sets]
            operations += [steps.delete_chain(name) for name in stale_chains]
            operations += [steps.delete_timeout(name) for name in stale_timeouts]
        operations += [steps.add_timeout(timeout) for timeout in sorted(self.timeouts)]
        operations += [steps.add_set(spec) for spec in self.list_sets()]
        operations += [steps.add_chain(chain) for chain in chains]
        for chain in chains:
            operations += steps.add_rules(chain)
        pools = self.list_pools()
        for name, entries in self.list_elements().items():
            spec = self.sets[name]
            if spec.data is Data.ENDPOINT:
                operations.append(AddSlots(spec, Slots(pools[name])))
            else:
                operations.append(AddElements(spec, entries))
        return Batch(self.traits, operations)

    def render(self) -> str:
        """Return the table in nft syntax, the same for the same contents."""
        traits = self.traits
        members: dict[str, list[str]] = {}
        pools = self.list_pools()
        for name, entries in self.list_elements().items():
            spec = self.sets[name]
            if spec.data is Data.ENDPOINT:
                slots = sorted(Slots(pools[name]), key=_compute_slot_order)
                members[name] = [text.format_slot(key, data, spec, traits) for key, data in slots]
            else:
                ordered = sorted(entries, key=lambda entry: entry[0].key)
                members[name] = [text.format_element(e, label, spec, traits) for e, label in ordered]
        return text.render_table(
            traits, self.comment, sorted(self.timeouts), self.list_sets(), members, self.list_chains()
        )


def compute_balancer_order(
    balancer: Balancer,
) -> tuple[int, tuple[FlowTimeout, ...], str, bool, str, int, int]:
    """Return a key that sorts a balancer behind those that it needs."""
    return (
        len(list_needed(balancer)),
        () if balancer.timeout is None else (balancer.timeout,),
        balancer.pick.value,
        balancer.node_port,
        balancer.flavour.value,
        balancer.size,
        balancer.cluster_size,
    )


def _compute_slot_order(entry: tuple[bytes, bytes]) -> tuple[bytes, int]:
    key = entry[0]
    return key[:-SLOT_LENGTH], unpack_slot_number(key[-SLOT_LENGTH:])
