"""YAML that is refused before it is built."""

from __future__ import annotations

import pytest

from pointsman.yamltext import YamlError, load_documents


@pytest.mark.parametrize(
    "text",
    [b"[" * 101 + b"]" * 101, b"- " * 101 + b"1", b"{a: " * 101 + b"1" + b"}" * 101],
    ids=["flow", "block", "braces"],
)
def test_text_that_is_nested_too_deeply_is_refused(text: bytes) -> None:
    with pytest.raises(YamlError, match="nested too deeply"):
        load_documents(text)


def test_text_that_is_nested_as_deeply_as_allowed_is_taken() -> None:
    (found,) = load_documents(b"[" * 100 + b"]" * 100)
    for _ in range(99):
        (found,) = found
    assert found == []


def test_aliases_that_stand_for_too_many_values_are_refused() -> None:
    lines = [b"a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [b"a%d: &a%d [%s]" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 10)) for n in range(1, 8)]
    with pytest.raises(YamlError, match="line 5: aliases stand for more than 100000 values; write them out"):
        load_documents(b"\n".join(lines))


def test_few_aliases_are_taken() -> None:
    assert load_documents(b"- &a [1, 2]\n- *a\n") == [[[1, 2], [1, 2]]]


def test_an_alias_of_what_it_is_a_part_of_is_refused() -> None:
    with pytest.raises(YamlError, match="line 1: an alias refers to what it is a part of"):
        load_documents(b"&a [*a]")
