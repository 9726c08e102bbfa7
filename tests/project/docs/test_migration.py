"""docs/migration.md promises that a node with kube-proxy's iptables rules needs no change."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.golden.recorded_node import recorded_node
from tests.golden.scenario import DATA

from pointsman.cli.main import main
from pointsman.kernel import nfacct

pytestmark = [
    pytest.mark.kernel,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces and netfilter"),
]
RECORDED = DATA / "everything"
COUNTERS = ("ct_state_invalid_dropped_pkts", "localhost_nps_accepted_pkts")


def test_the_rules_of_kube_proxy_show_no_difference_and_a_missing_one_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "xtables.lock"))
    asked = ["render", "--manifests", str(RECORDED / "objects.json"), "--node", "n1", "--mode", "iptables"]
    asked += ["--config", str(RECORDED / "config.yaml"), "--state-dir", str(tmp_path), "--diff"]
    with recorded_node():
        for counter in COUNTERS:
            nfacct.ensure(counter)
        for program in ("iptables", "ip6tables"):
            saved = (RECORDED / "iptables" / f"{program}-save.txt").read_text()
            subprocess.run([f"{program}-nft-restore"], input=saved, text=True, check=True)
        assert main(asked) == 0, capsys.readouterr().out
        subprocess.run(["iptables-nft", "-t", "nat", "-D", "KUBE-SERVICES", "1"], check=True)
        assert main(asked) == 1
        assert "  + -A KUBE-SERVICES" in capsys.readouterr().out
