"""The real kube-proxy in ipvs mode over the same made-up cluster, timed by its own metrics."""

from __future__ import annotations

import re
import statistics
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from bench.kube_proxy_iptables import CONFIG, METRICS, api_server, kube_proxy, write_objects

from pointsman.lab.netns import Namespace

_TIMEOUT_SECONDS = 2400
_CHANGES = 3
_SETTINGS: dict[str, object] = CONFIG | {
    "mode": "ipvs",
    "ipvs": {"minSyncPeriod": "1ms", "syncPeriod": "1h"},
}


def measure_kube_proxy(binary: str, services: int, endpoints: int) -> dict[str, object]:
    """Seconds of the first sync and of one with a replaced endpoint; IPv6 is off, to time one family."""
    namespace = Namespace()
    namespace.run(("ip", "link", "set", "lo", "up"))
    namespace.write_sysctls({"net/ipv6/conf/all/disable_ipv6": "1"})
    with namespace.entered(), tempfile.TemporaryDirectory() as name:
        objects, generations = Path(name) / "objects.json", [0] * services
        write_objects(objects, generations, endpoints)
        with api_server(objects), kube_proxy(binary, Path(name), "legacy", _SETTINGS):
            first, count = _settled(0)
            changes = []
            total = first
            for generation in range(1, _CHANGES + 1):
                generations[services // 2] = generation
                write_objects(objects, generations, endpoints)
                now, count = _settled(count)
                changes.append(now - total)
                total = now
    namespace.close()
    return {
        "proxy": "kube-proxy",
        "cluster": f"{services} x {endpoints}",
        "cold s": round(first, 3),
        "endpoint ms": round(1000 * statistics.median(changes), 2),
    }


def _sample() -> tuple[float, int]:
    try:
        with urllib.request.urlopen(METRICS, timeout=60) as answer:
            text = answer.read().decode()
    except (OSError, urllib.error.URLError):
        return 0.0, 0
    found = dict(
        re.findall(r'kubeproxy_sync_proxy_rules_duration_seconds_(sum|count){ip_family="IPv4"} (\S+)', text)
    )
    return float(found.get("sum", 0)), int(float(found.get("count", 0)))


def _settled(count: int) -> tuple[float, int]:
    """Sum of seconds and number of syncs, once there are more than `count` and no further one follows."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    before = (0.0, count)
    while time.monotonic() < deadline:
        now = _sample()
        if now[1] > count and now == before:
            return now
        before = now
        time.sleep(2)
    raise SystemExit(f"kube-proxy did not sync within {_TIMEOUT_SECONDS} s")
