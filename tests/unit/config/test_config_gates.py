"""Feature gates: states, locks, groups, gates of other components."""

import pytest

from pointsman.config.gates import (
    GATES,
    FeatureGates,
    compute_gate_states,
    find_gate_problems,
    find_gate_warnings,
    render_gates,
)


def test_defaults_are_upstreams() -> None:
    gates = FeatureGates({})
    on = {name for name in GATES if gates.enabled(name)}
    assert set(GATES) - on == {"KubeProxyNFTablesLocalhostNodePorts", "LoggingAlphaOptions"}


def test_named_setting_wins_over_its_group() -> None:
    gates = FeatureGates({"AllAlpha": True, "LoggingAlphaOptions": False, "AllBeta": False})
    assert gates.enabled("KubeProxyNFTablesLocalhostNodePorts")
    assert not gates.enabled("LoggingAlphaOptions")
    assert not gates.enabled("WatchListClient")
    assert gates.enabled("AllowServiceExternalIPs")


def test_locked_gate_accepts_only_its_default() -> None:
    assert find_gate_problems({"NFTablesProxyMode": True}) == []
    assert find_gate_problems({"NFTablesProxyMode": False}) == [
        "cannot set feature gate NFTablesProxyMode to false, feature is locked to true"
    ]
    assert FeatureGates({"NFTablesProxyMode": False}).enabled("NFTablesProxyMode")


def test_a_mistyped_gate_is_warned_about_with_the_nearest_name() -> None:
    assert find_gate_problems({"KubeProxyIPV": False}) == []
    assert find_gate_warnings({"KubeProxyIPV": False}) == [
        "feature gate KubeProxyIPV has no effect on a service proxy, did you mean KubeProxyIPVS?"
    ]


def test_contextual_logging_may_be_switched_as_in_kube_proxy() -> None:
    assert find_gate_problems({"ContextualLogging": False}) == []


def test_gate_of_another_component_is_accepted_with_a_warning() -> None:
    settings = {"DynamicResourceAllocation": False, "AllBeta": True}
    assert find_gate_problems(settings) == []
    assert find_gate_warnings(settings) == [
        "feature gate DynamicResourceAllocation has no effect on a service proxy"
    ]


def test_deprecated_and_finished_gates_are_warned_about() -> None:
    assert find_gate_warnings(
        {"KubeProxyIPVS": True, "AllowServiceExternalIPs": False, "ComponentFlagz": True}
    ) == [
        "feature gate AllowServiceExternalIPs is generally available and will be removed in a future release",
        "feature gate KubeProxyIPVS is deprecated and will be removed in a future release",
    ]


def test_asking_for_a_gate_outside_the_table_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        FeatureGates({}).enabled("NoSuchGate")


def test_help_lists_what_can_be_set() -> None:
    text = render_gates()
    assert "KubeProxyIPVS=true|false (DEPRECATED - default=true)" in text
    assert "NFTablesProxyMode" not in text


def test_every_gate_has_a_state_with_its_stage() -> None:
    states = compute_gate_states(FeatureGates({"AllAlpha": True, "WatchListClient": False}))
    assert len(states) == len(GATES) + 2
    assert states["AllAlpha", "ALPHA"] == states["LoggingAlphaOptions", "ALPHA"] == 1
    assert states["AllBeta", "BETA"] == states["WatchListClient", "BETA"] == 0
    assert states["KubeProxyIPVS", "DEPRECATED"] == states["NFTablesProxyMode", ""] == 1
