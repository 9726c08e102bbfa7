#!/usr/bin/env python3
"""Writes the schema of the chart's values, by which a misspelt or impossible value fails in `helm install`, and docs/values.md.

The block `config` is made from the program's own configuration types, so that chart and program accept the same fields.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml
from msgspec import inspect

from pointsman.config.mode_table import MODES
from pointsman.config.own_flags import SECURE_METRICS
from pointsman.config.types import KubeProxyConfiguration
from pointsman.config.validate import LOCAL_MODES, NODE_PORT_KEYWORDS

ROOT = Path(__file__).parents[1]
FILE = ROOT / "deploy/helm/pointsman/values.schema.json"
VALUES = ROOT / "deploy/helm/pointsman/values.yaml"
TABLE = ROOT / "docs/values.md"

Schema = dict[str, Any]

_RANGE = r"[0-9a-fA-F.:]+/[0-9]{1,3}"
_MARKED = {"quantity": ["string", "integer"], "nanoseconds": ["string", "integer"]}
"""Ways of writing a value that a type of ours carries as a mark."""
_NARROWED: dict[str, Schema] = {
    "mode": {"enum": ["", *MODES]},
    "clusterCIDR": {"pattern": f"^({_RANGE}(,{_RANGE})?)?$"},
    "nodePortAddresses": {
        "items": {"type": "string", "pattern": f"^({'|'.join(NODE_PORT_KEYWORDS)}|{_RANGE})$"}
    },
    "detectLocalMode": {"enum": ["", *LOCAL_MODES]},
}


def text(description: str = "", **more: Any) -> Schema:
    return {"type": "string", **({"description": description} if description else {}), **more}


def block(description: str = "", /, **properties: Schema) -> Schema:
    described = {"description": description} if description else {}
    return {"type": "object", **described, "properties": properties, "additionalProperties": False}


def anything(description: str, type_: str = "object") -> Schema:
    """A part of Kubernetes' own API, which the API server checks."""
    return {"type": type_, "description": description}


def build_values_schema() -> Schema:
    port = {"type": "integer", "minimum": 1, "maximum": 65535}
    seconds = {"type": "integer", "minimum": 1}
    probe = block(
        initialDelaySeconds={"type": "integer", "minimum": 0},
        periodSeconds=seconds,
        timeoutSeconds=seconds,
        failureThreshold=seconds,
    )
    profile = block(
        type=text(enum=["RuntimeDefault", "Localhost", "Unconfined"]),
        localhostProfile=text("its name on the nodes", minLength=1),
    )
    described = block(
        image=block(
            repository=text(minLength=1),
            tag=text("the chart's appVersion when empty"),
            digest=text("wins over the tag", pattern="^(sha256:[0-9a-f]{64})?$"),
            pullPolicy=text(enum=["Always", "IfNotPresent", "Never"]),
        ),
        imagePullSecrets=anything("names of Secrets with registry credentials", "array"),
        apiServer=block(
            "the API server's own address, for clusters where no other proxy serves the Service kubernetes",
            host=text("a name or an address that its certificate holds", pattern=r"^[A-Za-z0-9.:-]*$"),
            port=port,
        ),
        kubeconfig=block(
            "credentials other than the service account's; one of secret and hostPath",
            secret=text("a Secret in the release's namespace"),
            key=text("the key in it", minLength=1),
            hostPath=text("a file on the nodes", pattern="^(/.+)?$"),
        ),
        config=build_type_schema(inspect.type_info(KubeProxyConfiguration)),
        serviceMetrics=block(enabled={"type": "boolean"}, limit={"type": "integer", "minimum": 1}),
        secureServing=block(
            metrics=text(enum=["", *SECURE_METRICS]), health={"type": "boolean"}, secret=text()
        ),
        nodeStatus=block(condition={"type": "boolean"}, removeStartupTaint={"type": "boolean"}),
        monitoring=block(
            enabled={"type": "boolean"}, labels={"type": "object", "additionalProperties": text()}
        ),
        initSysctls={"type": "boolean"},
        extraArgs={"type": "array", "items": text(pattern="^--")},
        env=anything("EnvVars of both containers", "array"),
        extraVolumes=anything("Volumes of the pod", "array"),
        extraVolumeMounts=anything("VolumeMounts of the proxy's container", "array"),
        resources=anything("ResourceRequirements of both containers"),
        livenessProbe=probe,
        readinessProbe=probe,
        seccompProfile=profile,
        appArmorProfile=profile,
        maxUnavailable={
            "type": ["integer", "string"],
            "pattern": "^[0-9]+%$",
            "description": "pods that a rolling update may replace at once",
        },
        podAnnotations={"type": "object", "additionalProperties": text()},
        podLabels={"type": "object", "additionalProperties": text()},
        priorityClassName=text(),
        affinity=anything("Affinity of the pods"),
        nodeSelector={"type": "object", "additionalProperties": text()},
        tolerations=anything("Tolerations of the pods", "array"),
    )
    described["properties"]["global"] = anything("put there by Helm for charts that include this one")
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Values of Pointsman's chart",
        **described,
    }


def build_type_schema(found: inspect.Type) -> Schema:
    """The schema of one field, by its Python type."""
    match found:
        case inspect.Metadata(type=inner, extra=extra):
            marks = [mark for mark in extra or () if mark in _MARKED]
            return {"type": _MARKED[marks[0]]} if marks else build_type_schema(inner)
        case inspect.StructType(fields=fields):
            return block(**{one.encode_name: build_field_schema(one) for one in fields})
        case inspect.DictType(value_type=value):
            return {"type": "object", "additionalProperties": build_type_schema(value)}
        case inspect.VarTupleType(item_type=item):
            return {"type": "array", "items": build_type_schema(item)}
        case inspect.TimeDeltaType():
            return text()
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.FloatType():
            return {"type": "number"}
        case inspect.IntType(ge=least, le=most):
            limits = {"minimum": least, "maximum": most}
            return {"type": "integer", **{name: limit for name, limit in limits.items() if limit is not None}}
        case inspect.StrType():
            return text()
    raise TypeError(f"no schema for {found}")


def build_field_schema(field: inspect.Field) -> Schema:
    return {**build_type_schema(field.type), **_NARROWED.get(field.encode_name, {})}


def render_schema() -> str:
    return json.dumps(build_values_schema(), indent=2) + "\n"


def render_table() -> str:
    """Return docs/values.md: every value with its default, explained by the comments of values.yaml and the schema."""
    rows = [
        "# Values of the Helm chart",
        "",
        "Written by `scripts/chart_schema.py` from values.yaml and its schema.",
    ]
    rows += ["", "| Value | Default | |", "|---|---|---|"]
    comments = _read_comments(VALUES.read_text())
    schema = build_values_schema()
    for name, default in yaml.safe_load(VALUES.read_text()).items():
        about = schema["properties"][name]
        inner = about.get("properties", {})
        if name == "config" or not inner or not isinstance(default, dict) or not default:
            rows.append(_render_row(name, default, comments.get(name) or about.get("description", "")))
            continue
        rows.append(f"| `{name}` | | {comments.get(name) or about.get('description', '')} |")
        for key, value in default.items():
            described = comments.get(f"{name}.{key}") or inner[key].get("description", "")
            rows.append(_render_row(f"{name}.{key}", value, described))
    return "\n".join([*rows, ""])


def _render_row(name: str, default: object, text: str) -> str:
    shown = default if default and isinstance(default, str) else f"`{json.dumps(default)}`"
    return f"| `{name}` | {shown} | {text.replace('|', '/')} |"


def _read_comments(text: str) -> dict[str, str]:
    """Return the comments above or beside keys of the first two levels."""
    found, above, parent = {}, list[str](), ""
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("#"):
            above.append(stripped.lstrip("# "))
            continue
        match = re.match(r"( {0,2})([A-Za-z]+):[^#]*(?:# (.*))?$", line)
        if match:
            parent = parent if match[1] else match[2]
            name = f"{parent}.{match[2]}" if match[1] else match[2]
            found[name] = match[3] or " ".join(above)
        above = []
    return found


if __name__ == "__main__":
    FILE.write_text(render_schema())
    TABLE.write_text(render_table())
