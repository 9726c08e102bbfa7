"""The text of events in the history: what happened to a Service, or to the proxy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from pointsman.model.findings import Value
from pointsman.model.history import EventKind, HistoryEvent

ENDPOINT_CHANGES: Mapping[str, str] = {
    "added": "added",
    "removed": "removed",
    "ready": "became ready",
    "notReady": "became not ready",
    "terminating": "began to terminate",
}
"""Parameters with a number of endpoints; the one with `Names` appended has the first of them."""

_MESSAGES: Mapping[EventKind, str] = {
    EventKind.ENDPOINTS_CHANGED: "{endpoints}",
    EventKind.SERVICE_DOWN: "no usable endpoint: {endpoints}",
    EventKind.SERVICE_PARTIAL: "some frontends have no usable endpoint: {endpoints}",
    EventKind.SERVICE_HEALTHY: "every frontend has a usable endpoint: {endpoints}",
    EventKind.PORTS_ADDED: "ports added: {names}; {usable} usable endpoints",
    EventKind.PORTS_REMOVED: "ports removed: {names}",
    EventKind.SERVICE_CHANGED: "changed: {names}",
    EventKind.MANY_SERVICES: "{changes} more changes of Services, of {names} among them; {down} became down",
    EventKind.STARTED: "version {version}, {mode} mode",
    EventKind.RESTARTED: "{names}",
    EventKind.FIRST_SYNC: "{servicePorts} service ports, {endpoints} endpoints, in {milliseconds} ms",
    EventKind.SYNC_FAILED: "{error}",
    EventKind.SYNC_RECOVERED: "after {failures} failed syncs",
    EventKind.RULES_RESTORED: "modified externally: {what}",
    EventKind.CONDITION_RAISED: "{type}: {text}",
    EventKind.CONDITION_CLEARED: "{type}: {reason} has ended",
    EventKind.CONFIGURATION_APPLIED: "{names}",
    EventKind.CONFIGURATION_REJECTED: "{error}",
}


def describe_event(event: HistoryEvent) -> HistoryEvent:
    """Return the event with its message; one that has a message, from another program, keeps it."""
    return event if event.message else msgspec.structs.replace(event, message=render_event(event))


def render_event(event: HistoryEvent) -> str:
    """Return what happened, without the time and the Service."""
    values = {name: _render_value(value) for name, value in event.parameters.items()}
    if "usableBefore" in event.parameters:
        values["endpoints"] = "; ".join(_list_endpoint_changes(event.parameters))
    if "more" in values:
        values["names"] += f" and {values['more']} more"
    text = _MESSAGES[event.kind].format_map(values)
    is_repeated = event.count > 1 and event.kind in (EventKind.SYNC_FAILED, EventKind.RULES_RESTORED)
    return f"{text} ({event.count} times)" if is_repeated else text


def _list_endpoint_changes(parameters: Mapping[str, Value]) -> Iterator[str]:
    for name, text in ENDPOINT_CHANGES.items():
        count, shown = parameters.get(name, 0), parameters.get(f"{name}Names", ())
        if count:
            yield f"{count} {text} ({_render_value(shown)}{', ...' if count != len(_as_tuple(shown)) else ''})"
    yield f"usable {parameters['usableBefore']} -> {parameters['usable']}"


def _as_tuple(value: Value) -> tuple[str, ...]:
    return value if isinstance(value, tuple) else ()


def _render_value(value: Value) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)
