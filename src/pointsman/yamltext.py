"""YAML as Kubernetes means it: the JSON subset of types, read safely and fast.

Differences from a plain safe load: time stamps stay text, as they do in JSON; whole numbers beyond 64 bits are floating
ones, as they are for Go, because Python refuses to print long ones; errors carry the line but never a piece of the text,
which may be a secret; and three kinds of text are refused before they are built: documents nested absurdly deep, because
libyaml overflows the C stack on them and takes the process along, aliases that a few lines turn into millions of values,
and more values than memory should hold: each takes 350 bytes while its document is built.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

_DEEPEST = 100
_LONGEST_INTEGER = 100
"""Characters; a number of 64 bits has 66 at most, written with zeros and ones."""
_MOST_VALUES_BY_ALIASES = 100_000
_BEFORE_A_VALUE = (b",", b",", b"\n", b"\r", b":", b"-", b"?", b"[", b"{")
"""A comma twice: in braces, a key may stand alone, and its value is one as well."""
_DEEP_INDENT = re.compile(rb"(?m)^[ \t?:-]{%d}" % _DEEPEST)
_STARTS = ("MappingStartEvent", "SequenceStartEvent")
_ENDS = ("MappingEndEvent", "SequenceEndEvent")

OnDuplicate = Callable[[str], None]
"""Called with a key that stands twice in one mapping; the last value counts."""


class MostValues(NamedTuple):
    """How many values may be built."""

    in_document: int = 1_000_000
    in_all: int = 3_000_000


_MOST = MostValues()


class YamlError(ValueError):
    """The text is not usable YAML; the message says where and why."""


def load_documents(
    data: bytes, on_duplicate: OnDuplicate | None = None, most: MostValues = _MOST
) -> list[Any]:
    """All documents of a stream. Raises YamlError."""
    import yaml

    loader = _loader() if on_duplicate is None else _noticing_loader(on_duplicate)
    try:
        if _may_be_excessive(data, most):
            _Excess(most).refuse(yaml.parse(data, Loader=loader))
        return list(yaml.load_all(data, Loader=loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not valid YAML"
        raise YamlError(f"{line}{problem}") from None
    except RecursionError:
        raise YamlError("nested too deeply") from None
    except YamlError:
        raise
    except (ValueError, OverflowError, TypeError, AttributeError, KeyError) as error:
        raise YamlError(f"a value cannot be read: {type(error).__name__}") from None


def _may_be_excessive(data: bytes, most: MostValues) -> bool:
    """Cheap and on the safe side: depth needs brackets or indentation, an alias its two marks, every value a mark before it."""
    return (
        data.count(b"[") + data.count(b"{") >= _DEEPEST
        or (b"&" in data and b"*" in data)
        or _DEEP_INDENT.search(data) is not None
        or sum(map(data.count, _BEFORE_A_VALUE)) >= most.in_document
    )


class _Excess:
    """Follows the events of a stream and counts what building them would cost."""

    def __init__(self, most: MostValues) -> None:
        self._most = most
        self._built = 0
        self._allowed = 0
        self._by_aliases = 0
        self._open: list[tuple[str | None, int]] = []
        """Anchor of each collection that has begun, and the number of values built before it."""
        self._sizes: dict[str, int] = {}
        """Values that an alias of this anchor stands for."""

    def refuse(self, events: Any) -> None:
        """Raises YamlError or RecursionError at the first event that is too much."""
        for event in events:
            name = type(event).__name__
            if name in _STARTS:
                self._open.append((event.anchor, self._built))
                if len(self._open) > _DEEPEST:
                    raise RecursionError
                self._build(1, event)
            elif name in _ENDS:
                anchor, before = self._open.pop()
                if anchor is not None:
                    self._sizes[anchor] = self._built - before
            elif name == "ScalarEvent":
                self._build(1, event)
                if event.anchor is not None:
                    self._sizes[event.anchor] = 1
            elif name == "AliasEvent":
                self._alias(event)
            elif name == "DocumentStartEvent":
                self._sizes.clear()
                self._allowed = min(self._built + self._most.in_document, self._most.in_all)

    def _build(self, values: int, event: Any) -> None:
        self._built += values
        if self._built > self._allowed:
            raise YamlError(
                f"line {_line(event)}: more than {self._most.in_document} values in one document, "
                f"or {self._most.in_all} in all; use more files, or JSON"
            )

    def _alias(self, event: Any) -> None:
        if any(event.anchor == outer for outer, _ in self._open):
            raise YamlError(f"line {_line(event)}: an alias refers to what it is a part of")
        size = self._sizes.get(event.anchor, 0)
        self._by_aliases += size
        if self._by_aliases > _MOST_VALUES_BY_ALIASES:
            raise YamlError(
                f"line {_line(event)}: aliases stand for more than {_MOST_VALUES_BY_ALIASES} values; write them out"
            )
        self._build(size, event)


def _line(event: Any) -> int:
    number: int = event.start_mark.line + 1
    return number


@functools.cache
def _loader() -> type[Any]:
    import yaml

    base: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers = {
        first: [entry for entry in entries if entry[0] != "tag:yaml.org,2002:timestamp"]
        for first, entries in base.yaml_implicit_resolvers.items()
    }
    integer = "tag:yaml.org,2002:int"
    plain: Callable[[Any, Any], int] = base.yaml_constructors[integer]

    def bounded(loader: Any, node: Any) -> int | float:
        if len(node.value) > _LONGEST_INTEGER:
            return math.inf
        found = plain(loader, node)
        return found if -(1 << 63) <= found < 1 << 64 else float(found)

    return type(
        "_KubernetesLoader",
        (base,),
        {
            "yaml_implicit_resolvers": resolvers,
            "yaml_constructors": {**base.yaml_constructors, integer: bounded},
        },
    )


def _noticing_loader(on_duplicate: OnDuplicate) -> type[Any]:
    """A loader whose keys are text, as JSON's are, and that tells of those given twice."""
    base = _loader()

    def construct_mapping(self: Any, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        self.flatten_mapping(node)
        found: dict[Hashable, Any] = {}
        for key_node, value_node in node.value:
            key = self.construct_object(key_node, deep=True)
            key = key if isinstance(key, str) else str(key)
            if key in found:
                on_duplicate(key)
            found[key] = self.construct_object(value_node, deep=deep)
        return found

    return type("_NoticingLoader", (base,), {"construct_mapping": construct_mapping})
