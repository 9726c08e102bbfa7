"""Feature gates of a service proxy: what they do here, and which can still change.

kube-proxy accepts every gate of Kubernetes, so a file shared between components may name gates that mean nothing to
a proxy. Any gate that is not in the table is ignored with a warning: which of them exist changes with every release.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from pointsman.text import did_you_mean


class Stage(enum.Enum):
    """Maturity of a gate."""

    ALPHA = "ALPHA"
    BETA = "BETA"
    GA = ""
    DEPRECATED = "DEPRECATED"


_GROUPS = {Stage.ALPHA: "AllAlpha", Stage.BETA: "AllBeta"}
"""Gates that switch all of one stage."""


_LIKENESS = 0.85
"""Most gates of other components resemble one of these a little."""


class Gate(msgspec.Struct, frozen=True):
    """A gate as of the Kubernetes version we follow."""

    name: str
    stage: Stage
    default: bool
    effect: str
    """What it does here."""
    locked: bool = False
    """Setting it to anything but its default is an error."""


GATES: dict[str, Gate] = {
    gate.name: gate
    for gate in (
        Gate("AllowServiceExternalIPs", Stage.GA, True, "answer on the externalIPs of Services"),
        Gate("ComponentFlagz", Stage.BETA, True, "serve /flagz"),
        Gate("ComponentStatusz", Stage.BETA, True, "serve /statusz"),
        Gate("ContextualLogging", Stage.BETA, True, "no effect here: log lines always carry their context"),
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
    """The state of every gate: a setting by name wins over AllAlpha and AllBeta, these over the default."""

    settings: Mapping[str, bool]

    def enabled(self, name: str) -> bool:
        """Return whether the gate is on; KeyError for one that is not in the table."""
        gate = GATES[name]
        if gate.locked:
            return gate.default
        group = _GROUPS.get(gate.stage, "")
        return self.settings.get(name, self.settings.get(group, gate.default))


def compute_gate_states(gates: FeatureGates) -> dict[tuple[str, ...], float]:
    """Return 1 where a gate is on, by name and stage, groups included, as kube-proxy's metric has it."""
    states: dict[tuple[str, ...], float] = {
        (group, stage.value): float(gates.settings.get(group, False)) for stage, group in _GROUPS.items()
    }
    for gate in GATES.values():
        states[gate.name, gate.stage.value] = float(gates.enabled(gate.name))
    return states


def find_gate_problems(settings: Mapping[str, bool]) -> list[str]:
    """Return why these settings cannot be used, one sentence each."""
    problems = []
    for name, on in sorted(settings.items()):
        gate = GATES.get(name)
        if gate is not None and gate.locked and on is not gate.default:
            state = str(gate.default).lower()
            problems.append(
                f"cannot set feature gate {name} to {str(on).lower()}, feature is locked to {state}"
            )
    return problems


def find_gate_warnings(settings: Mapping[str, bool]) -> list[str]:
    """Return what the user should know about usable settings."""
    warnings = []
    for name in sorted(settings):
        gate = GATES.get(name)
        if gate is None:
            if name not in _GROUPS.values():
                warnings.append(
                    f"feature gate {name} has no effect on a service proxy{did_you_mean(name, GATES, likeness=_LIKENESS)}"
                )
        elif gate.stage is Stage.DEPRECATED:
            warnings.append(f"feature gate {name} is deprecated and will be removed in a future release")
        elif gate.stage is Stage.GA:
            warnings.append(
                f"feature gate {name} is generally available and will be removed in a future release"
            )
    return warnings


def render_gates() -> str:
    """Return one line per gate, as in kube-proxy's help."""
    lines = [f"{group}=true|false ({stage.value} - default=false)" for stage, group in _GROUPS.items()]
    for gate in GATES.values():
        if not gate.locked:
            stage = f"{gate.stage.value} - " if gate.stage.value else ""
            lines.append(
                f"{gate.name}=true|false ({stage}default={str(gate.default).lower()}): {gate.effect}"
            )
    return "\n".join(lines)
