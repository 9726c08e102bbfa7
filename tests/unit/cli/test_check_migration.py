"""`pointsman check --to nftables`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from pointsman.cli.main import main

EXAMPLE = str(Path(__file__).parents[3] / "docs/examples/shop")
IPVS = ("check", "--to", "nftables", "--proxy-mode=ipvs", "--ipvs-scheduler=sh", "--kernel=6.1.0")


def test_changes_and_remedies_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*IPVS, "--manifests", EXAMPLE]) == 0
    shown = capsys.readouterr().out
    assert "From ipvs to nftables mode; examined: the configuration and 8 Services" in shown
    assert "scheduler sh (ipvs.scheduler) is source-hash in nftables mode" in shown


def test_without_a_cluster_that_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(IPVS)) == 0
    assert "add --manifests or --kubeconfig for Services" in capsys.readouterr().out


def test_the_converted_configuration_is_a_configuration_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main([*IPVS, "-o", "yaml"]) == 0
    text = capsys.readouterr().out
    assert yaml.safe_load(text)["mode"] == "nftables"
    converted = tmp_path / "config.yaml"
    converted.write_text(text)
    assert main(["check", "--strict", f"--config={converted}"]) == 0


def test_findings_are_data_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*IPVS, "-o", "json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {finding["code"] for finding in answer["findings"]} >= {"MigrateScheduler"}


def test_an_old_kernel_is_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*IPVS, "--kernel=5.10.0"]) == 1
    assert "kernel 5.10 is too old" in capsys.readouterr().out


def test_a_cluster_in_the_mode_already_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--to", "nftables", "--proxy-mode=nftables"]) == 2
    assert "has mode nftables already" in capsys.readouterr().err
