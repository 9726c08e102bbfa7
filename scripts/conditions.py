#!/usr/bin/env python3
"""Writes docs/conditions.md from the table of conditions."""

from __future__ import annotations

from pathlib import Path

from pointsman.wording.conditions import CONDITION_TYPES, ConditionType

PAGE = Path(__file__).parents[1] / "docs/conditions.md"

_DOCUMENT = """\
# Conditions

Written by `scripts/conditions.py`. [operations.md](operations.md#conditions) says where conditions appear and what
each level of *blocks* means.

Those in italics are shown only while they are not true. `pointsman_condition{{type="...", reason="..."}}` is 1 while a condition is not
true, `/readyz` has a line for each that blocks readiness or more, and the reason `AsExpected` means that it is true.

| Type | True when | Blocks |
|---|---|---|
{types}

## Reasons

| Type | Reason | What to do |
|---|---|---|
{reasons}
"""


def render_document() -> str:
    """Return the text of docs/conditions.md."""
    types = "\n".join(f"| {_render_name(row)} | {row.meaning} | {row.blocks} |" for row in CONDITION_TYPES)
    reasons = "\n".join(
        f"| `{row.name}` | `{reason}` | {remedy} |"
        for row in CONDITION_TYPES
        for reason, remedy in row.reasons.items()
    )
    return _DOCUMENT.format(types=types, reasons=reasons)


def _render_name(row: ConditionType) -> str:
    names = [f"`{row.name}{suffix}`" if suffix != "..." else suffix for suffix in row.suffixes]
    text = ", ".join(names)
    return text if row.is_constant else f"*{text}*"


if __name__ == "__main__":
    PAGE.write_text(render_document())
