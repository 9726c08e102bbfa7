"""Families read at scrape time."""

from __future__ import annotations

from pathlib import Path

import pytest

from pointsman.obs.collectors import ProcessTraffic


def sampled(netstat: Path) -> dict[str, float]:
    return {
        sample.name: sample.value for family in ProcessTraffic(netstat).collect() for sample in family.samples
    }


def test_traffic_is_what_the_kernel_counts_for_ip(tmp_path: Path) -> None:
    netstat = tmp_path / "netstat"
    netstat.write_text(
        "TcpExt: InOctets\nTcpExt: 9\nIpExt: InNoRoutes InOctets OutOctets\nIpExt: 3 1234 5678\n"
    )
    figures = sampled(netstat)
    assert figures["process_network_receive_bytes_total"] == 1234
    assert figures["process_network_transmit_bytes_total"] == 5678
    assert figures["process_virtual_memory_max_bytes"] > 0


@pytest.mark.parametrize("text", [None, "", "IpExt: InOctets\n", "IpExt: InOctets\nIpExt: many\n"])
def test_what_the_kernel_does_not_say_is_left_out(text: str | None, tmp_path: Path) -> None:
    netstat = tmp_path / "netstat"
    if text is not None:
        netstat.write_text(text)
    assert set(sampled(netstat)) == {"process_virtual_memory_max_bytes"}
