"""A software bill of materials (CycloneDX 1.5, JSON): what is inside an artefact, by name, version and licence."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from scripts.release.source import Source

_NAMESPACE = uuid.UUID("5f2f6a52-6f0e-5a35-9a5c-3c1f6b9d7f10")


class Component(NamedTuple):
    """One thing that is inside."""

    name: str
    version: str
    purl: str
    licence: str = ""


def python_components(site_packages: Path) -> list[Component]:
    """The distributions installed in a directory, without Pointsman itself."""
    found = [
        Component(name, each.version, f"pkg:pypi/{quote(name)}@{quote(each.version)}", _licence(each))
        for each in distributions(path=[str(site_packages)])
        if (name := each.metadata["Name"].lower().replace("_", "-")) != "pointsman"
    ]
    return sorted(found)


def _licence(each: Distribution) -> str:
    """An SPDX expression where the package gives one, else its own text."""
    for field in ("License-Expression", "License"):
        for text in each.metadata.get_all(field) or ():
            if "\n" not in text:
                return str(text)
    classifiers = [
        text for text in each.metadata.get_all("Classifier") or () if text.startswith("License ::")
    ]
    return classifiers[0].rpartition(" :: ")[2] if classifiers else ""


def bill(source: Source, artefact: str, components: Iterable[Component]) -> str:
    """The document; the same source and components give the same text."""
    listed = [_component(each) for each in sorted(components)]
    itself = f"pkg:pypi/pointsman@{source.version}"
    serial = uuid.uuid5(_NAMESPACE, json.dumps([artefact, source.revision, listed]))
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(source.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": itself,
                "name": "pointsman",
                "version": source.version,
                "purl": itself,
                "licenses": [{"license": {"id": "Apache-2.0"}}],
                "properties": [{"name": "artefact", "value": artefact}],
            },
        },
        "components": listed,
        "dependencies": [{"ref": itself, "dependsOn": sorted(each["bom-ref"] for each in listed)}],
    }
    return json.dumps(document, indent=1) + "\n"


def _component(each: Component) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": each.purl,
        "name": each.name,
        "version": each.version,
        "purl": each.purl,
    }
    if each.licence:
        made["licenses"] = [{"license": {"name": each.licence}}]
    return made
