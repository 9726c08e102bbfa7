"""YAML that is refused before it is built."""

from __future__ import annotations

import pytest

from pointsman.yamltext import MostValues, YamlError, load_documents

MOST = MostValues(in_document=100, in_all=300)


@pytest.mark.parametrize(
    "text",
    [
        b"[" + b"1," * 100 + b"]",
        b"- 1\n" * 100,
        b"- 1\r" * 100,
        b"- - - 1\n" * 40,
        b"".join(b"? %d\n" % number for number in range(60)),
        b"{" + b",".join(b"%d" % number for number in range(60)) + b"}",
        b"".join(b"%d:\n" % number for number in range(60)),
        (b"- 1\n" * 70 + b"---\n") * 5,
        b"- &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n" + b"- *a\n" * 10,
        ("[" + "1," * 100 + "]").encode("utf-16"),
    ],
    ids=[
        "flow",
        "lines",
        "returns",
        "nested",
        "keys",
        "keys in braces",
        "pairs",
        "documents",
        "aliases",
        "UTF-16",
    ],
)
def test_more_values_than_allowed_are_refused_whatever_is_between_them(text: bytes) -> None:
    with pytest.raises(YamlError, match="more than 100 values in one document, or 300 in all"):
        load_documents(text, most=MOST)


def test_as_many_values_as_allowed_are_taken() -> None:
    lines = b"- 1\n" * 99
    assert load_documents(lines, most=MOST) == [[1] * 99]
    assert load_documents((lines + b"---\n") * 2, most=MOST) == [[1] * 99] * 2 + [None]
