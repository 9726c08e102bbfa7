"""Which Services a question is about: by name, namespace and labels. Pure.

The trackers have no use for labels, so they are kept beside them, packed, for each Service that has any.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import msgspec

from pointsman.errors import PointsmanError
from pointsman.model.objects import Service

_KEY = r"(?:[A-Za-z0-9.-]+/)?[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?"
_REQUIREMENT = re.compile(
    rf"\s*(?:(?P<key>{_KEY})\s*(?P<operator>==|=|!=)\s*(?P<value>{_VALUE})"
    rf"|(?P<set_key>{_KEY})\s+(?P<set_operator>in|notin)\s*\((?P<values>[^()]*)\)"
    rf"|(?P<absent>!)?\s*(?P<existing>{_KEY}))\s*(?:,|$)"
)


class BadSelector(PointsmanError):
    """A selector cannot be understood; the message shows the forms."""


class Requirement(msgspec.Struct, frozen=True):
    """One condition on one label."""

    key: str
    values: frozenset[str] | None = None
    """None: any value will do."""
    wanted: bool = True
    """False: the label must not be there with one of these values."""

    def is_fulfilled_by(self, labels: Mapping[str, str]) -> bool:
        found = labels.get(self.key)
        return (found is not None and (self.values is None or found in self.values)) == self.wanted


Selector = tuple[Requirement, ...]


def parse_selector(text: str) -> Selector:
    """Parse `app=web,tier!=test,team in (a, b),!legacy` as Kubernetes does; raises BadSelector."""
    found: list[Requirement] = []
    position = 0
    while position < len(text):
        match = _REQUIREMENT.match(text, position)
        if match is None:
            raise BadSelector(
                f"cannot understand the selector {text!r} from {text[position:].strip()!r}: write conditions such as "
                "app=web, app!=web, app, !app, 'app in (web, shop)' or 'app notin (web)', separated by commas"
            )
        found.append(_parse_requirement(match))
        position = match.end()
    return tuple(found)


def _parse_requirement(match: re.Match[str]) -> Requirement:
    if match["key"]:
        return Requirement(match["key"], frozenset((match["value"],)), match["operator"] != "!=")
    if match["set_key"]:
        values = frozenset(value.strip() for value in match["values"].split(","))
        return Requirement(match["set_key"], values, match["set_operator"] == "in")
    return Requirement(match["existing"], wanted=not match["absent"])


class ServiceLabels:
    """The labels of every Service that has any, by key (`namespace/name`)."""

    def __init__(self, services: Iterable[Service] = ()) -> None:
        self._packed: dict[str, bytes] = {}
        self.changes = 0
        """How often a Service got other labels: trackers take no note of that, and no sync follows."""
        for service in services:
            self.upsert(service)

    def upsert(self, service: Service) -> None:
        labels = service.metadata.labels
        self._set(service.metadata.key, msgspec.json.encode(labels) if labels else b"")

    def delete(self, key: str) -> None:
        self._set(key, b"")

    def _set(self, key: str, packed: bytes) -> None:
        if self._packed.get(key, b"") == packed:
            return
        self.changes += 1
        if packed:
            self._packed[key] = packed
        else:
            del self._packed[key]

    def copy(self) -> ServiceLabels:
        """Return a copy that later changes do not reach."""
        taken = ServiceLabels()
        taken._packed = dict(self._packed)
        return taken

    def get(self, key: str) -> dict[str, str]:
        packed = self._packed.get(key)
        return msgspec.json.decode(packed, type=dict[str, str]) if packed else {}


class ServiceSelection(msgspec.Struct, frozen=True):
    """Services to answer about."""

    namespace: str = ""
    selector: Selector = ()
    names: tuple[str, ...] = ()
    """Globs, each for a name or for NAMESPACE/NAME; none: all."""

    @property
    def is_everything(self) -> bool:
        return not (self.namespace or self.selector or self.names)

    def matches(self, key: str, labels: ServiceLabels) -> bool:
        """Whether a Service (`namespace/name`) is one of them."""
        namespace, _, name = key.partition("/")
        if self.namespace not in ("", namespace):
            return False
        if self.names and not any(fnmatchcase(key if "/" in glob else name, glob) for glob in self.names):
            return False
        found = labels.get(key) if self.selector else {}
        return all(requirement.is_fulfilled_by(found) for requirement in self.selector)
