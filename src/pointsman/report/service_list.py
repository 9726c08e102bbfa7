"""What `pointsman list` asks and gets: service ports selected by name, namespace, label and state, as rows and as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

import msgspec

from pointsman.explain.verdict import WORST_FIRST, Verdict, port_verdict
from pointsman.explain.view import FamilyView, View
from pointsman.model.addresses import host_port_text
from pointsman.model.plan import FrontendKind
from pointsman.model.service import ServicePortName
from pointsman.report.labels import Selector, ServiceLabels, selected, selector_from_text, selector_text
from pointsman.report.overview import FrontendRow, ServiceRow, endpoint_rows, service_row
from pointsman.screen import PLAIN, Screen, Table, Tone, laid_out

NOT_PLANNED = (
    "its cluster IP is served by another Service, or a sync is on its way; `pointsman explain` tells which"
)
_TONES = {Verdict.ANSWERS.value: Tone.GOOD, Verdict.PARTLY.value: Tone.DOUBT, Verdict.DOWN.value: Tone.BAD}
_ADDRESSES_SHOWN = 10


class ListQuery(msgspec.Struct, frozen=True):
    """Which service ports to list, and how much about each."""

    namespace: str = ""
    selector: Selector = ()
    names: tuple[str, ...] = ()
    """Globs, each for a name or for NAMESPACE/NAME; none: all."""
    states: tuple[str, ...] = ()
    """Verdicts; none: all."""
    detailed: bool = False

    @classmethod
    def from_words(cls, words: Mapping[str, str]) -> ListQuery:
        """From the parameters of a URL, as `words` gives them; raises BadSelector."""
        return cls(
            namespace=words.get("namespace", ""),
            selector=selector_from_text(words.get("selector", "")),
            names=tuple(filter(None, words.get("names", "").split(","))),
            states=tuple(filter(None, words.get("states", "").split(","))),
            detailed=words.get("detailed", "") == "1",
        )

    def words(self) -> dict[str, str]:
        """As the parameters of a URL."""
        return {
            "namespace": self.namespace,
            "selector": selector_text(self.selector),
            "names": ",".join(self.names),
            "states": ",".join(self.states),
            "detailed": "1" if self.detailed else "0",
        }

    def wants(self, name: ServicePortName, labels: ServiceLabels) -> bool:
        if self.namespace not in ("", name.namespace):
            return False
        if self.names and not any(
            fnmatchcase(name.key if "/" in glob else name.service, glob) for glob in self.names
        ):
            return False
        return not self.selector or selected(labels.of(name.key), self.selector)


class ServiceList(msgspec.Struct, frozen=True, rename="camel"):
    """The answer, sorted by name."""

    node: str
    mode: str = ""
    version: str = ""
    """Changes with every sync of the running proxy, and with labels."""
    unchanged: bool = False
    """Nothing changed since the version that was asked about; there are no rows then."""
    rows: tuple[ServiceRow, ...] = ()


def service_list(view: View, labels: ServiceLabels, query: ListQuery, version: str = "") -> ServiceList:
    """All service ports that the query wants; one that is not served at all is listed as down."""
    found: list[tuple[ServicePortName, str, ServiceRow]] = []
    for family in view.families:
        for name in family.states:
            if query.wants(name, labels):
                row = _row(name, family, view, detailed=query.detailed)
                if not query.states or row.state in query.states:
                    found.append((name, row.family, row))
    found.sort(key=lambda entry: entry[:2])
    return ServiceList(view.node, view.mode.name, version, rows=tuple(row for _, _, row in found))


def state_counts(view: View) -> dict[str, int]:
    """How many service ports answer, answer partly or are down, as a list of all would show them."""
    counts = dict.fromkeys((verdict.value for verdict in Verdict), 0)
    for family in view.families:
        for name in family.states:
            plan = family.plans.get(name)
            verdict = Verdict.DOWN if plan is None else port_verdict(plan, family, view.mode)
            counts[verdict.value] += 1
    return counts


def _row(name: ServicePortName, family: FamilyView, view: View, *, detailed: bool) -> ServiceRow:
    plan = family.plans.get(name)
    if plan is not None:
        return service_row(plan, family, view.mode, detailed=detailed)
    state = family.states[name]
    address = host_port_text(state.port.cluster_ip, state.port.port)
    return ServiceRow(
        service=name.key,
        port=name.port,
        protocol=name.protocol.name,
        family=family.family.value,
        number=state.port.port,
        frontends=(FrontendRow(FrontendKind.CLUSTER_IP.value, address, "", ""),),
        usable=0,
        total=len(state.endpoints),
        local=sum(endpoint.local for endpoint in state.endpoints),
        state=Verdict.DOWN.value,
        problems=(NOT_PLANNED,),
        endpoints=endpoint_rows(state.endpoints, used=()) if detailed else (),
    )


SORTS: Mapping[str, Callable[[ServiceRow], tuple[object, ...]]] = {
    "name": lambda _row: (),
    "state": lambda row: (WORST_FIRST.index(Verdict(row.state)),),
    "endpoints": lambda row: (-row.usable,),
    "unused": lambda row: (row.usable - row.total,),
    "port": lambda row: (row.number,),
    "address": lambda row: (len(row.frontends[0].address), row.frontends[0].address),
}
"""How rows can be sorted; the worst or most comes first, and equal ones stay sorted by name."""


def list_text(rows: Sequence[ServiceRow], *, wide: bool, screen: Screen = PLAIN, heading: bool = True) -> str:
    """A table with one line per service port."""
    head = ["SERVICE", "PORT", "ADDRESS", "ENDPOINTS", "POLICY", "STATE"]
    if wide:
        head += ["FAMILY", "LOCAL", "ALSO AT", "AFFINITY", "TOPOLOGY", "SCHEDULER", "GONE", "USED", "UNUSED"]
    cells = [[*_cells(row), *(_wide_cells(row) if wide else ())] for row in rows]
    return laid_out([Table([head, *cells] if heading else cells, _TONES, heading=heading)], screen)


def _cells(row: ServiceRow) -> Iterator[str]:
    yield row.service
    yield row.port_words
    yield row.frontends[0].address
    yield f"{row.usable}/{row.total}"
    yield "/".join(dict.fromkeys(frontend.policy for frontend in row.frontends if frontend.policy)) or "-"
    yield row.state


def _wide_cells(row: ServiceRow) -> Iterator[str]:
    yield row.family
    yield str(row.local)
    yield _listed([f"{frontend.kind} {frontend.address}" for frontend in row.frontends[1:]])
    yield f"{row.affinity_seconds} s" if row.affinity_seconds else "-"
    yield row.topology or "-"
    yield row.scheduler or "-"
    yield "reset" if row.resets_gone else "-"
    yield _listed([endpoint.address for endpoint in row.endpoints if endpoint.used])
    yield _listed([endpoint.address for endpoint in row.endpoints if not endpoint.used])


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - _ADDRESSES_SHOWN} more" if len(words) > _ADDRESSES_SHOWN else ""
    return ", ".join(words[:_ADDRESSES_SHOWN]) + more if words else "-"
