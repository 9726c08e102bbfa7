"""YAML as Kubernetes means it: the JSON subset of types, read safely and fast.

Differences from a plain safe load: time stamps stay text, as they do in JSON; whole numbers beyond 64 bits are floating
ones, as they are for Go, because Python refuses to print long ones; errors carry the line but never a piece of the text,
which may be a secret; and two kinds of text are refused before they are built: documents nested absurdly deep, because
libyaml overflows the C stack on them and takes the process along, and aliases that a few lines turn into millions of
values. How long a text may be is for the caller to limit.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Hashable
from typing import Any

_MAX_DEPTH = 100
_MAX_INTEGER_CHARACTERS = 100
"""A number of 64 bits has 66 at most, written with zeros and ones."""
_MAX_ALIASED_VALUES = 100_000
_DEEP_INDENT = re.compile(rb"(?m)^[ \t?:-]{%d}" % _MAX_DEPTH)
_STARTS = ("MappingStartEvent", "SequenceStartEvent")
_ENDS = ("MappingEndEvent", "SequenceEndEvent")

OnDuplicate = Callable[[str], None]
"""Called with a key that occurs twice in one mapping; the last value counts."""


class YamlError(ValueError):
    """The text is not usable YAML; the message says where and why."""


def load_documents(data: bytes, on_duplicate: OnDuplicate | None = None) -> list[Any]:
    """Return all documents of a stream. Raises YamlError."""
    import yaml

    loader = _build_loader() if on_duplicate is None else _build_noticing_loader(on_duplicate)
    try:
        if _may_be_excessive(data):
            _refuse_excess(yaml.parse(data, Loader=loader))
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


def _may_be_excessive(data: bytes) -> bool:
    """Return whether the events must be looked at: depth needs brackets or indentation, an alias its two marks."""
    return (
        data.count(b"[") + data.count(b"{") >= _MAX_DEPTH
        or (b"&" in data and b"*" in data)
        or _DEEP_INDENT.search(data) is not None
    )


def _refuse_excess(events: Any) -> None:
    """Raise YamlError or RecursionError at the first event that is too deep, or that aliases too many values."""
    built = aliased = 0
    open_anchors: list[tuple[str | None, int]] = []
    """Anchor of each collection that has begun, and the number of values before it."""
    sizes: dict[str, int] = {}
    """Values that an alias of this anchor expands to."""
    for event in events:
        name = type(event).__name__
        if name in _STARTS:
            open_anchors.append((event.anchor, built))
            if len(open_anchors) > _MAX_DEPTH:
                raise RecursionError
            built += 1
        elif name in _ENDS:
            anchor, before = open_anchors.pop()
            if anchor is not None:
                sizes[anchor] = built - before
        elif name == "ScalarEvent":
            built += 1
            if event.anchor is not None:
                sizes[event.anchor] = 1
        elif name == "AliasEvent":
            line = event.start_mark.line + 1
            if any(event.anchor == anchor for anchor, _ in open_anchors):
                raise YamlError(f"line {line}: an alias refers to what it is a part of")
            built += sizes.get(event.anchor, 0)
            aliased += sizes.get(event.anchor, 0)
            if aliased > _MAX_ALIASED_VALUES:
                raise YamlError(
                    f"line {line}: aliases stand for more than {_MAX_ALIASED_VALUES} values; write them out"
                )


@functools.cache
def _build_loader() -> type[Any]:
    import yaml

    base: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers = {
        first: [entry for entry in entries if entry[0] != "tag:yaml.org,2002:timestamp"]
        for first, entries in base.yaml_implicit_resolvers.items()
    }
    integer = "tag:yaml.org,2002:int"
    plain: Callable[[Any, Any], int] = base.yaml_constructors[integer]

    def construct_integer(loader: Any, node: Any) -> int | float:
        if len(node.value) > _MAX_INTEGER_CHARACTERS:
            return math.inf
        found = plain(loader, node)
        return found if -(1 << 63) <= found < 1 << 64 else float(found)

    return type(
        "_KubernetesLoader",
        (base,),
        {
            "yaml_implicit_resolvers": resolvers,
            "yaml_constructors": {**base.yaml_constructors, integer: construct_integer},
        },
    )


def _build_noticing_loader(on_duplicate: OnDuplicate) -> type[Any]:
    """Return a loader whose keys are text, as JSON's are, and that reports those given twice."""
    base = _build_loader()

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
