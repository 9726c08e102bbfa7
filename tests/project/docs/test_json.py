"""docs/json.md lists every field that `-o json` of explain, list, top, events and simulate has, and no other."""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from pointsman.explain.service_port import Explanation
from pointsman.model.findings import Code
from pointsman.report.history import HistoryReport
from pointsman.report.service_list import ServiceList
from pointsman.report.traffic import TrafficReport
from pointsman.simulate.report import SimulationReport

DOCUMENT = Path(__file__).parents[3] / "docs" / "json.md"
SECTION = re.compile(r"^## (\w+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)


def find_types(kind: Any, found: dict[str, type]) -> dict[str, type]:
    """All structs and enumerations that an answer is made of, by name."""
    if isinstance(kind, type) and issubclass(kind, (msgspec.Struct, enum.Enum)):
        if kind.__name__ in found:
            return found
        found[kind.__name__] = kind
        if issubclass(kind, msgspec.Struct):
            for field in msgspec.structs.fields(kind):
                find_types(field.type, found)
    for argument in get_args(kind):
        find_types(argument, found)
    return found


TYPES: dict[str, type] = {}
for answer in (ServiceList, Explanation, TrafficReport, HistoryReport, SimulationReport):
    find_types(answer, TYPES)


def documented() -> dict[str, list[str]]:
    sections = SECTION.findall(DOCUMENT.read_text())
    return {name: re.findall(r"^\| `([^`]+)` \|", body, re.MULTILINE) for name, body in sections}


def test_every_type_has_a_section_and_no_other() -> None:
    assert set(documented()) == set(TYPES)


@pytest.mark.parametrize("name", sorted(TYPES))
def test_every_field_is_listed_in_its_order(name: str) -> None:
    kind = TYPES[name]
    if issubclass(kind, enum.Enum):
        expected = [str(member.value) for member in kind]
        if kind is Code:
            assert sorted(documented()[name]) == sorted(expected)
            return
    else:
        assert issubclass(kind, msgspec.Struct)
        expected = [field.encode_name for field in msgspec.structs.fields(kind)]
    assert documented()[name] == expected
