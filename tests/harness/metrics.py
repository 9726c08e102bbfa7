"""Reading metrics as a scraper does: from the text of /metrics."""

from __future__ import annotations

import re


def read_metric(text: str, name: str, **labels: str) -> float:
    """Sum the samples of that name with these labels; 0 without any."""
    total = 0.0
    for line in text.splitlines():
        found = re.fullmatch(rf"{re.escape(name)}(\{{[^}}]*\}})? (\S+)", line)
        if found and all(f'{label}="{value}"' in (found[1] or "") for label, value in labels.items()):
            total += float(found[2])
    return total
