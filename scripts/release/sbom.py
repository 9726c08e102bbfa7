"""A software bill of materials (CycloneDX 1.5, JSON): what is inside an artefact, by name, version and licence."""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from scripts.release.source import ROOT, Source

_NAMESPACE = uuid.UUID("5f2f6a52-6f0e-5a35-9a5c-3c1f6b9d7f10")


class Component(NamedTuple):
    """One thing that is inside."""

    name: str
    version: str
    purl: str
    licence: str = ""


def list_python_components(site_packages: Path) -> list[Component]:
    """The distributions installed in a directory, without Pointsman itself."""
    found = [
        Component(name, each.version, f"pkg:pypi/{quote(name)}@{quote(each.version)}", _find_licence(each))
        for each in distributions(path=[str(site_packages)])
        if (name := each.metadata["Name"].lower().replace("_", "-")) != "pointsman"
    ]
    return sorted(found)


def list_pinned_components() -> list[Component]:
    """What requirements/run.txt installs: what the wheel needs, in the versions that were tested."""
    pins = re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements/run.txt").read_text(), re.MULTILINE)
    return [Component(name, version, f"pkg:pypi/{name}@{version}") for name, version in pins]


def _find_licence(each: Distribution) -> str:
    """An SPDX expression where the package gives one, else its own text."""
    for field in ("License-Expression", "License"):
        for text in each.metadata.get_all(field) or ():
            if "\n" not in text:
                return str(text)
    classifiers = [
        text for text in each.metadata.get_all("Classifier") or () if text.startswith("License ::")
    ]
    return classifiers[0].rpartition(" :: ")[2] if classifiers else ""


def write_bill(
    source: Source, artefact: Path, components: Iterable[Component], *, inside: bool = True
) -> None:
    """Write NAME.cdx.json beside an artefact; without `inside` the components are those that it needs elsewhere."""
    digest = hashlib.sha256(artefact.read_bytes()).hexdigest()
    text = build_bill(source, artefact.name, digest, components, inside=inside)
    artefact.with_name(f"{artefact.name}.cdx.json").write_text(text)


def build_bill(
    source: Source, artefact: str, digest: str, components: Iterable[Component], *, inside: bool = True
) -> str:
    """Return the document; the same source and components give the same text."""
    listed = [_build_component(each, inside) for each in sorted(components)]
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
                "hashes": [{"alg": "SHA-256", "content": digest}],
                "properties": [
                    {"name": "pointsman:artefact", "value": artefact},
                    {"name": "pointsman:revision", "value": source.revision},
                ],
            },
        },
        "components": listed,
        "dependencies": [{"ref": itself, "dependsOn": sorted(each["bom-ref"] for each in listed)}],
    }
    return json.dumps(document, indent=1) + "\n"


def _build_component(each: Component, inside: bool) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": each.purl,
        "name": each.name,
        "version": each.version,
        "purl": each.purl,
    }
    if not inside:
        made["scope"] = "excluded"
    if each.licence:
        made["licenses"] = [{"license": {"name": each.licence}}]
    return made
