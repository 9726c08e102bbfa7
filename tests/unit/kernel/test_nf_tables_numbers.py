"""Our copy of the kernel's numbers against its header."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pointsman.kernel import nf_tables

HEADERS = tuple(
    Path("/usr/include/linux") / name
    for name in ("netfilter/nf_tables.h", "netfilter/nf_tables_compat.h", "netfilter.h")
)
NEWER_THAN_MANY_HEADERS = {"NFTA_SET_COUNT"}


def enumerators(text: str) -> dict[str, int]:
    """Every enumerator of a C header whose value can be told without its preprocessor."""
    found: dict[str, int] = {}
    plain = re.sub(r"/\*.*?\*/|^#.*?(?<!\\)$", "", text, flags=re.DOTALL | re.MULTILINE)
    for body in re.findall(r"enum\s*\w*\s*\{(.*?)\}", plain, re.DOTALL):
        value = -1
        for entry in filter(None, map(str.strip, body.split(","))):
            name, _, given = map(str.strip, entry.partition("="))
            shifted = re.fullmatch(r"\(?(-?(?:0x[0-9a-f]+|\d+))U?(?:\s*<<\s*(\d+))?\)?", given)
            value = int(shifted[1], 0) << int(shifted[2] or 0) if shifted else value + 1
            found[name] = value
    return found


@pytest.mark.skipif(not all(path.exists() for path in HEADERS), reason="needs the kernel's headers")
def test_every_number_is_the_kernels() -> None:
    header = "".join(path.read_text() for path in HEADERS)
    theirs = enumerators(header) | {
        name: int(value) for name, value in re.findall(r"#define (NFT?_\w+)\s+(\d+)", header)
    }
    ours = {name: value for name, value in vars(nf_tables).items() if re.match("NF", name)}
    assert len(ours) > 100
    known = {name: theirs[name] for name in ours if name in theirs}
    assert ours.keys() - known.keys() <= NEWER_THAN_MANY_HEADERS
    assert known == {name: ours[name] for name in known}
