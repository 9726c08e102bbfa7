"""Manifest text to objects, pure: YAML or JSON, several documents, List kinds.

Kinds a proxy has no use for are passed over in silence, so that a directory may hold a whole application.
Every problem names the file, the document, the object and the field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from pointsman.kube.yamltext import YamlError, load_documents
from pointsman.model.objects import EndpointSlice, KubeObject, Node, Service, ServiceCIDR
from pointsman.source.admission import admission

_KINDS: dict[str, tuple[str, tuple[str, ...], type[KubeObject]]] = {
    "Service": ("", ("v1",), Service),
    "Node": ("", ("v1",), Node),
    "EndpointSlice": ("discovery.k8s.io", ("discovery.k8s.io/v1",), EndpointSlice),
    "ServiceCIDR": (
        "networking.k8s.io",
        ("networking.k8s.io/v1", "networking.k8s.io/v1beta1", "networking.k8s.io/v1alpha1"),
        ServiceCIDR,
    ),
}


class Rejection(msgspec.Struct, frozen=True):
    """Something in a file that is not used; `key` is empty when the whole document is meant."""

    kind: str
    key: str
    message: str


class Parsed(msgspec.Struct, frozen=True):
    """What a file holds."""

    objects: list[KubeObject]
    rejections: list[Rejection]
    remarks: list[Rejection]
    """About objects that are used nevertheless."""
    readable: bool = True
    """False when the text as a whole could not be read."""

    @property
    def problems(self) -> list[str]:
        return [entry.message for entry in (*self.rejections, *self.remarks)]


def objects_from_bytes(data: bytes, name: str) -> tuple[list[KubeObject], list[str]]:
    """The usable objects, and a message for everything that is not; `name` is the file's, for the messages."""
    parsed = parse(data, name)
    return parsed.objects, parsed.problems


def parse(data: bytes, name: str) -> Parsed:
    """Never raises: what cannot be read is in the result."""
    parsed = Parsed([], [], [])
    try:
        documents = _documents(data)
    except YamlError as error:
        message = f"{name}: {error}"
        return Parsed([], [Rejection("File", name, message)], [], readable=False)
    for where, document, listed_kind in _flattened(documents, name):
        _add(parsed, where, document, listed_kind)
    return parsed


def _documents(data: bytes) -> list[Any]:
    if data.lstrip()[:1] == b"{":
        try:
            return [msgspec.json.decode(data)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Flow-style YAML, or several JSON documents, also start with a brace.
            pass
    return load_documents(data)


def _flattened(documents: list[Any], name: str) -> Iterator[tuple[str, Any, str]]:
    """Each object with its place and the kind its list implies."""
    for index, document in enumerate(documents):
        where = name if len(documents) == 1 else f"{name}: document {index + 1}"
        if document is None:
            continue
        kind = document.get("kind") if isinstance(document, dict) else None
        if isinstance(kind, str) and kind.endswith("List") and isinstance(document.get("items"), list | None):
            for number, item in enumerate(document.get("items") or ()):
                yield f"{where}: items[{number}]", item, kind.removesuffix("List")
        else:
            yield where, document, ""


def _add(parsed: Parsed, where: str, document: Any, listed_kind: str) -> None:
    if not isinstance(document, dict):
        parsed.rejections.append(Rejection("Document", "", f"{where}: not a Kubernetes object (no mapping)"))
        return
    kind = document.get("kind") or listed_kind
    if not isinstance(kind, str) or not kind:
        parsed.rejections.append(Rejection("Document", "", f"{where}: kind: required"))
        return
    if kind not in _KINDS:
        return
    group, versions, struct = _KINDS[kind]
    version = document.get("apiVersion") or (versions[0] if listed_kind else "")
    key = _key(document, namespaced=struct in (Service, EndpointSlice))
    subject = f"{where}: {kind} {key or '(unnamed)'}"
    if version not in versions:
        if isinstance(version, str) and _group(version) != group and version:
            return
        expected = f"{subject}: apiVersion: {version!r}: use {versions[0]}"
        parsed.rejections.append(Rejection(kind, key, expected))
        return
    try:
        item: KubeObject = msgspec.convert(document, struct)
    except (msgspec.ValidationError, RecursionError) as error:
        parsed.rejections.append(Rejection(kind, key, f"{subject}: {_field_first(str(error))}"))
        return
    admitted = admission(item)
    entries = [Rejection(kind, key, f"{subject}: {problem}") for problem in admitted.problems]
    if admitted.object is None:
        parsed.rejections.extend(entries)
    else:
        parsed.objects.append(admitted.object)
        parsed.remarks.extend(entries)


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _key(document: dict[Any, Any], *, namespaced: bool) -> str:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return ""
    name = metadata["name"]
    return f"{metadata.get('namespace') or 'default'}/{name}" if namespaced else name


def _field_first(error: str) -> str:
    """Turns "what - at `$.path`" around: people look for the path first."""
    what, separator, place = error.rpartition(" - at `$.")
    return f"{place.rstrip('`')}: {what}" if separator else error
