"""Only a mode's own package and the configuration know which modes there are; everybody else asks the `Mode`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pointsman.config.mode_table import MODES

SOURCE = Path(__file__).parents[2] / "src" / "pointsman"
CONSTANTS = {name.upper() for name in MODES}
PACKAGES = tuple(row.module.rpartition(".")[0] for row in MODES.values())


def _others() -> list[Path]:
    rooms = [SOURCE / "config", *(SOURCE / "backends" / name for name in MODES)]
    return [path for path in sorted(SOURCE.rglob("*.py")) if not any(room in path.parents for room in rooms)]


def _names_a_mode(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return node.value in MODES
    if isinstance(node, ast.Name):
        return node.id in CONSTANTS
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return any(_names_a_mode(item) for item in node.elts)
    return isinstance(node, ast.MatchValue) and _names_a_mode(node.value)


def _asks_for_a_mode(node: ast.AST) -> bool:
    match node:
        case ast.Compare():
            return any(_names_a_mode(side) for side in (node.left, *node.comparators))
        case ast.Dict():
            return any(key is not None and _names_a_mode(key) for key in node.keys)
        case ast.Subscript():
            return _names_a_mode(node.slice)
        case ast.match_case():
            return any(_names_a_mode(inner) for inner in ast.walk(node.pattern))
        case ast.Import():
            return any(alias.name.startswith(PACKAGES) for alias in node.names)
        case ast.ImportFrom():
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            return any(
                name.startswith(PACKAGES) or alias.name in CONSTANTS
                for name, alias in zip(whole, node.names, strict=True)
            )
    return False


def questions(code: str) -> Iterator[str]:
    """The places of a module that depend on which mode it is."""
    for node in ast.walk(ast.parse(code)):
        if _asks_for_a_mode(node):
            yield ast.unparse(node)


def test_no_code_outside_a_modes_package_asks_which_mode_it_is() -> None:
    asked = {str(path): list(questions(path.read_text())) for path in _others()}
    assert {path: found for path, found in asked.items() if found} == {}


@pytest.mark.parametrize(
    "code",
    [
        "mode == 'nftables'",
        "config.mode in ('iptables', 'ipvs')",
        "NFTABLES != mode",
        "periods = {'nftables': 1.0}",
        "periods[IPVS]",
        "from pointsman.config.mode_table import NFTABLES",
        "from pointsman.backends.nftables.apply import NftablesBackend",
        "from pointsman.backends import ipvs",
        "match mode:\n    case 'ipvs': pass",
    ],
)
def test_every_way_to_ask_is_found(code: str) -> None:
    assert list(questions(code))


def test_the_packages_of_the_modes_do_not_lean_on_each_other() -> None:
    for name, package in zip(MODES, PACKAGES, strict=True):
        foreign = tuple(f"from {other}" for other in PACKAGES if other != package)
        for path in (SOURCE / "backends" / name).glob("*.py"):
            assert not [line for line in path.read_text().splitlines() if line.startswith(foreign)], path
