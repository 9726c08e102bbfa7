"""YAML as Kubernetes means it: the JSON subset of types, read safely and fast.

Differences from a plain safe load: time stamps stay text, as they do in JSON; errors carry the line but never a
piece of the text, which may be a secret; and documents nested absurdly deep are refused, because libyaml
overflows the C stack on them and takes the process along.
"""

from __future__ import annotations

import functools
import re
from typing import Any

_DEEPEST = 100
_DEEP_INDENT = re.compile(rb"(?m)^[ \t?:-]{%d}" % _DEEPEST)


class YamlError(ValueError):
    """The text is not usable YAML; the message says where and why."""


def load_documents(data: bytes) -> list[Any]:
    """All documents of a stream. Raises YamlError."""
    import yaml

    loader = _loader()
    try:
        if _may_be_deep(data):
            _refuse_depth(yaml.parse(data, Loader=loader))
        return list(yaml.load_all(data, Loader=loader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not valid YAML"
        raise YamlError(f"{line}{problem}") from None
    except RecursionError:
        raise YamlError("nested too deeply") from None
    except (ValueError, OverflowError, TypeError) as error:
        raise YamlError(f"a value cannot be read: {type(error).__name__}") from None


def _may_be_deep(data: bytes) -> bool:
    """Cheap and on the safe side: depth needs that many brackets, or that much indentation."""
    return data.count(b"[") + data.count(b"{") >= _DEEPEST or _DEEP_INDENT.search(data) is not None


def _refuse_depth(events: Any) -> None:
    depth = 0
    for event in events:
        name = type(event).__name__
        if name in ("MappingStartEvent", "SequenceStartEvent"):
            depth += 1
            if depth > _DEEPEST:
                raise RecursionError
        elif name in ("MappingEndEvent", "SequenceEndEvent"):
            depth -= 1


@functools.cache
def _loader() -> type[Any]:
    import yaml

    base: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    resolvers = {
        first: [entry for entry in entries if entry[0] != "tag:yaml.org,2002:timestamp"]
        for first, entries in base.yaml_implicit_resolvers.items()
    }
    return type("_KubernetesLoader", (base,), {"yaml_implicit_resolvers": resolvers})
