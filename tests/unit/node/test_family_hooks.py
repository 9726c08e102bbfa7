"""What a failed sync leaves in the metrics."""

import pytest

from pointsman.backends import mode_named
from pointsman.errors import KernelError
from pointsman.model.addresses import Family
from pointsman.node.family import FamilyHooks
from pointsman.obs.registry import Metrics
from pointsman.serve.health import ProxyHealth

PREFIX = "kubeproxy_sync_proxy_rules_iptables"


@pytest.mark.parametrize(("partial", "counted"), [(False, 0), (True, 1)])
def test_failed_restores_are_counted_and_partial_ones_apart(partial: bool, counted: int) -> None:
    metrics = Metrics("iptables", mode_named("iptables").metrics)
    hooks = FamilyHooks(Family.IPV4, metrics, ProxyHealth(1), lambda _outcome: None, lambda _what: None)
    error = KernelError("line 3 refused")
    error.partial = partial
    hooks.failed(error, 1.0)
    lines = metrics.exposition().decode().splitlines()
    assert f'{PREFIX}_restore_failures_total{{ip_family="IPv4"}} 1.0' in lines
    apart = f'{PREFIX}_partial_restore_failures_total{{ip_family="IPv4"}} 1.0'
    assert lines.count(apart) == counted
