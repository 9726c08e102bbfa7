"""Tables, sets and chains that the documents name are those the program makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.factory import context

from pointsman.backends.nftables import balancers, schema

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
NFTABLES = (ROOT / "docs/nftables.md").read_text()
SOURCE = "\n".join(path.read_text() for path in (ROOT / "src/pointsman").rglob("*.py"))
SETS = {spec.name for spec in schema.build_static_sets()}
CHAINS = {chain.name for chain in schema.build_static_chains(context())}


def _first_column(heading: str) -> set[str]:
    """The names in the first column of the table with that heading."""
    table = NFTABLES.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return {name for row in table.splitlines()[2:] for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_every_set_of_the_table_is_described_and_no_other() -> None:
    assert _first_column("set or map") == SETS | {"affinity-HASH"}


def test_described_chains_exist() -> None:
    described = _first_column("chain")
    fixed = {name for name in described if name in CHAINS}
    per_service = {"service-", "local-", "external-", "endpoint-HASH"}
    by_number = described - fixed - per_service
    assert all(balancers.is_balancer_name(name.replace("N", "2").replace("M", "3")) for name in by_number)
    assert {chain.name for chain in schema.build_static_chains(context()) if chain.hook is None} <= fixed | {
        schema.REJECT_CHAIN
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_names_in_nft_commands_and_comments_are_real(path: Path) -> None:
    text = path.read_text()
    assert set(re.findall(r"layout (\d+)", text)) <= {str(schema.LAYOUT)}
    named = re.findall(r"nft [a-z ]*?(?:element|set|map) ip6? kube-proxy ([\w-]+)", text)
    assert set(named) <= SETS
    assert set(re.findall(r"\bnft [a-z]+ table ip6? ([\w-]+)", text)) <= {schema.TABLE}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_chains_and_ipsets_of_kube_proxy_are_spelled_as_the_program_spells_them(path: Path) -> None:
    for name in set(re.findall(r"\bKUBE-[A-Z0-9][A-Z0-9-]*", path.read_text())):
        assert name in SOURCE, name
