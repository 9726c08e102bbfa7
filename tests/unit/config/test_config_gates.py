"""Feature gates: states, locks, groups, gates of other components."""

import pytest

from pointsman.config.gates import (
    PROXY_GATES,
    effective_gates,
    gate_problems,
    gate_states,
    gate_warnings,
    gates_help,
)


def test_defaults_are_upstreams() -> None:
    gates = effective_gates({})
    on = {name for name in PROXY_GATES if gates.enabled(name)}
    assert set(PROXY_GATES) - on == {"KubeProxyNFTablesLocalhostNodePorts", "LoggingAlphaOptions"}


def test_named_setting_wins_over_its_group() -> None:
    gates = effective_gates({"AllAlpha": True, "LoggingAlphaOptions": False, "AllBeta": False})
    assert gates.enabled("KubeProxyNFTablesLocalhostNodePorts")
    assert not gates.enabled("LoggingAlphaOptions")
    assert not gates.enabled("WatchListClient")
    assert gates.enabled("AllowServiceExternalIPs")


def test_locked_gate_accepts_only_its_default() -> None:
    assert gate_problems({"NFTablesProxyMode": True}) == []
    assert gate_problems({"NFTablesProxyMode": False}) == [
        "cannot set feature gate NFTablesProxyMode to false, feature is locked to true"
    ]
    assert effective_gates({"NFTablesProxyMode": False}).enabled("NFTablesProxyMode")


def test_unknown_gate_is_an_error_with_the_nearest_name() -> None:
    assert gate_problems({"KubeProxyIPV": False}) == [
        "unrecognized feature gate: KubeProxyIPV, did you mean KubeProxyIPVS?"
    ]


@pytest.mark.parametrize(
    ("settings", "complaints"),
    [
        ({"AllAlpha": True, "AllBeta": True}, 0),
        ({"AllAlpha": True, "GenericWorkload": True}, 0),
        ({"AllAlpha": True}, 4),
        ({"AtomicFIFO": False}, 6),
        ({"AtomicFIFO": False, "AllBeta": False}, 0),
        ({"StorageVersionAPI": True, "APIServerIdentity": False}, 2),
    ],
)
def test_a_gate_needs_those_it_depends_on_as_in_kube_proxy(
    settings: dict[str, bool], complaints: int
) -> None:
    assert len(gate_problems(settings)) == complaints


def test_a_missing_dependency_is_named() -> None:
    (problem,) = gate_problems({"DRAPartitionableDevicesType": True, "DRAPartitionableDevices": False})
    assert problem.endswith("that are disabled: DRAPartitionableDevices, DRAResourcePoolStatus")


def test_contextual_logging_may_be_switched_as_in_kube_proxy() -> None:
    assert gate_problems({"ContextualLogging": False}) == []


def test_gate_of_another_component_is_accepted_with_a_warning() -> None:
    settings = {"DynamicResourceAllocation": True}
    assert gate_problems(settings) == []
    assert gate_warnings(settings) == [
        "feature gate DynamicResourceAllocation has no effect on a service proxy"
    ]


def test_deprecated_and_finished_gates_are_warned_about() -> None:
    assert gate_warnings(
        {"KubeProxyIPVS": True, "AllowServiceExternalIPs": False, "ComponentFlagz": True}
    ) == [
        "feature gate AllowServiceExternalIPs is generally available and will be removed in a future release",
        "feature gate KubeProxyIPVS is deprecated and will be removed in a future release",
    ]


def test_asking_for_a_gate_outside_the_table_is_a_programming_error() -> None:
    with pytest.raises(KeyError):
        effective_gates({}).enabled("NoSuchGate")


def test_help_lists_what_can_be_set() -> None:
    text = gates_help()
    assert "KubeProxyIPVS=true|false (DEPRECATED - default=true)" in text
    assert "NFTablesProxyMode" not in text


def test_every_gate_of_kubernetes_has_a_state_with_its_stage() -> None:
    states = gate_states(effective_gates({"AllAlpha": True, "KMSv1": True}))
    assert len(states) == 254  # as many as kube-proxy 1.37 shows
    assert states["AllAlpha", "ALPHA"] == states["LoggingAlphaOptions", "ALPHA"] == 1
    assert states["AllBeta", "BETA"] == states["DRAFractionalCapacityRange", "BETA"] == 0
    assert states["KMSv1", "DEPRECATED"] == states["NFTablesProxyMode", ""] == 1


def test_a_deprecated_gate_may_be_locked_off() -> None:
    assert gate_problems({"GitRepoVolumeDriver": False}) == []
    assert gate_problems({"GitRepoVolumeDriver": True}) == [
        "cannot set feature gate GitRepoVolumeDriver to true, feature is locked to false"
    ]
