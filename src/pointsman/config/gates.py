"""Feature gates: which are known, what they do here, and which can still change.

kube-proxy accepts every gate of Kubernetes, so a file shared between components may name gates that mean nothing to
a proxy. Those are accepted with a warning; names that Kubernetes does not know are errors.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from pointsman.config.gates_elsewhere import LOCKED_OFF, LOCKED_ON, SETTABLE
from pointsman.suggestions import did_you_mean

ALL_ALPHA, ALL_BETA = "AllAlpha", "AllBeta"


class Stage(enum.Enum):
    """Maturity of a gate."""

    ALPHA = "ALPHA"
    BETA = "BETA"
    GA = ""
    DEPRECATED = "DEPRECATED"


class Gate(msgspec.Struct, frozen=True):
    """A gate that touches the proxy, as of the Kubernetes version we follow."""

    name: str
    stage: Stage
    default: bool
    effect: str
    locked: bool = False
    """Setting it to anything but its default is an error."""


GATES: Mapping[str, Gate] = {
    gate.name: gate
    for gate in (
        Gate("AllowServiceExternalIPs", Stage.GA, True, "answer on the externalIPs of Services"),
        Gate("ComponentFlagz", Stage.BETA, True, "serve /flagz"),
        Gate("ComponentStatusz", Stage.BETA, True, "serve /statusz"),
        Gate(
            "ContextualLogging",
            Stage.GA,
            True,
            "no effect here: log lines always carry their context",
            locked=True,
        ),
        Gate("KubeProxyIPVS", Stage.DEPRECATED, True, "allow mode ipvs"),
        Gate(
            "KubeProxyNFTablesLocalhostNodePorts",
            Stage.ALPHA,
            False,
            "answer TCP node ports on loopback addresses in nftables mode",
        ),
        Gate(
            "LoggingAlphaOptions",
            Stage.ALPHA,
            False,
            "allow the split-stream and info-buffer-size log options",
        ),
        Gate("LoggingBetaOptions", Stage.BETA, True, "allow --logging-format=json"),
        Gate("MultiCIDRServiceAllocator", Stage.GA, True, "watch ServiceCIDRs", locked=True),
        Gate("NFTablesNetlink", Stage.BETA, True, "no effect here: nftables is always programmed by netlink"),
        Gate("NFTablesProxyMode", Stage.GA, True, "allow mode nftables", locked=True),
        Gate("NativeHistograms", Stage.BETA, True, "no effect here: metrics are served as text"),
        Gate(
            "PreferSameTrafficDistribution", Stage.GA, True, "use node hints of EndpointSlices", locked=True
        ),
        Gate(
            "RelaxedServiceNameValidation",
            Stage.GA,
            True,
            "Service names may start with a digit",
            locked=True,
        ),
        Gate("StrictIPCIDRValidation", Stage.BETA, True, "no effect here: the API server enforces it"),
        Gate("WatchListClient", Stage.BETA, True, "stream the initial list where the API server can"),
        Gate("WinDSR", Stage.GA, True, "Windows only", locked=True),
        Gate("WinOverlay", Stage.GA, True, "Windows only", locked=True),
    )
}


class FeatureGates(msgspec.Struct, frozen=True):
    """The effective state of the gates that touch the proxy."""

    states: Mapping[str, bool]

    def enabled(self, name: str) -> bool:
        """Whether the gate is on; asking for a gate not in the table is a programming error (KeyError)."""
        return self.states[name]


def effective_gates(settings: Mapping[str, bool]) -> FeatureGates:
    """Defaults, then AllAlpha and AllBeta, then the settings by name."""
    states = {gate.name: gate.default for gate in GATES.values()}
    for group, stage in ((ALL_ALPHA, Stage.ALPHA), (ALL_BETA, Stage.BETA)):
        if group in settings:
            states.update((gate.name, settings[group]) for gate in GATES.values() if gate.stage is stage)
    states.update((name, on) for name, on in settings.items() if name in states and not GATES[name].locked)
    return FeatureGates(states)


def gate_problems(settings: Mapping[str, bool]) -> list[str]:
    """Why these settings cannot be used, one sentence each."""
    problems = []
    for name, on in sorted(settings.items()):
        locked = _locked_state(name)
        if not is_known(name):
            problems.append(f"unrecognized feature gate: {name}{did_you_mean(name, GATES)}")
        elif locked is not None and on is not locked:
            state = str(locked).lower()
            problems.append(
                f"cannot set feature gate {name} to {str(on).lower()}, feature is locked to {state}"
            )
    return problems


def gate_warnings(settings: Mapping[str, bool]) -> list[str]:
    """What the user should know about usable settings."""
    warnings = []
    for name in sorted(settings):
        gate = GATES.get(name)
        if gate is None:
            if name not in (ALL_ALPHA, ALL_BETA) and is_known(name):
                warnings.append(f"feature gate {name} has no effect on a service proxy")
        elif gate.stage is Stage.DEPRECATED:
            warnings.append(f"feature gate {name} is deprecated and will be removed in a future release")
        elif gate.stage is Stage.GA:
            warnings.append(
                f"feature gate {name} is generally available and will be removed in a future release"
            )
    return warnings


def is_known(name: str) -> bool:
    return (
        name in GATES or name in (ALL_ALPHA, ALL_BETA) or name in SETTABLE or _locked_state(name) is not None
    )


def gates_help() -> str:
    """One line per gate, as in kube-proxy's help."""
    lines = [
        f"{ALL_ALPHA}=true|false (ALPHA - default=false)",
        f"{ALL_BETA}=true|false (BETA - default=false)",
    ]
    for gate in GATES.values():
        if not gate.locked:
            stage = f"{gate.stage.value} - " if gate.stage.value else ""
            lines.append(
                f"{gate.name}=true|false ({stage}default={str(gate.default).lower()}): {gate.effect}"
            )
    return "\n".join(lines)


def _locked_state(name: str) -> bool | None:
    gate = GATES.get(name)
    if gate is not None:
        return gate.default if gate.locked else None
    if name in LOCKED_ON:
        return True
    return False if name in LOCKED_OFF else None
