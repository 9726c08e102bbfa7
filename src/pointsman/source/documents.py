"""Manifest text to objects, pure: YAML or JSON, several documents, List kinds.

Kinds that are not used by a proxy are ignored and only counted, so that a directory may hold a whole application; one
that looks like a misspelt known kind is rejected. Every problem names the file, the document, the object and the field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pointsman.model.findings import DOCUMENT, FILE, Code, Finding, ObjectReference, Severity
from pointsman.model.objects import EndpointSlice, KubeObject, Node, Service, ServiceCIDR
from pointsman.source.admission import Admitted, Refused, admit
from pointsman.text import find_similar
from pointsman.yamltext import YamlError, load_documents

MAX_FINDINGS_PER_FILE = 200
"""A file may hold a million mistakes; the others are counted."""
_MAX_IGNORED_KINDS = 50
_MAX_NAME_CHARACTERS = 253
"""What Kubernetes allows; admission rejects longer ones."""
_MAX_MESSAGE_CHARACTERS = 500
_MIN_SIMILARITY = 0.85

Admission = Callable[[KubeObject], Admitted | Refused]

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


@dataclass(slots=True)
class Parsed:
    """What a file holds."""

    objects: list[KubeObject] = field(default_factory=list)
    rejected: list[Finding] = field(default_factory=list)
    notices: list[Finding] = field(default_factory=list)
    """About objects that are used nevertheless."""
    truncated: int = 0
    """Rejections beyond the limit."""
    refused: set[tuple[str, str]] = field(default_factory=set)
    """Kind and key of every object that was rejected, beyond the limit as well."""
    ignored: Counter[str] = field(default_factory=Counter)
    """Objects by kind that are not used by a proxy."""
    readable: bool = True
    """False when the text as a whole could not be read."""

    def reject(self, code: Code, reference: ObjectReference, detail: str) -> None:
        if reference.key:
            self.refused.add((reference.kind, reference.key))
        if len(self.rejected) < MAX_FINDINGS_PER_FILE:
            self.rejected.append(build_rejection(code, reference, detail))
        else:
            self.truncated += 1

    def notice(self, code: Code, reference: ObjectReference, detail: str) -> None:
        if len(self.notices) < MAX_FINDINGS_PER_FILE:
            self.notices.append(Finding(code, Severity.NOTICE, reference, {"detail": detail}))

    @property
    def findings(self) -> list[Finding]:
        return [*self.rejected, *self.notices]


def build_rejection(code: Code, reference: ObjectReference, detail: str) -> Finding:
    """Return the finding about an object, or a file, that cannot be used."""
    return Finding(code, Severity.ERROR, reference, {"detail": detail[:_MAX_MESSAGE_CHARACTERS]})


def build_unreadable_file(name: str, detail: str) -> Finding:
    return build_rejection(Code.UNREADABLE, ObjectReference(FILE, name, place=name), detail)


def parse(data: bytes, name: str, admission: Admission = admit) -> Parsed:
    """Parse a file; `name` is its name for the messages. Never raises: what cannot be read is in the result."""
    try:
        documents = _load(data)
    except YamlError as error:
        return Parsed(rejected=[build_unreadable_file(name, str(error))], readable=False)
    parsed = Parsed()
    for where, document, listed_kind in _flatten(documents, name):
        try:
            _add(parsed, where, document, listed_kind, admission)
        except Exception as error:  # noqa: BLE001  one document must never keep the others from being read
            message = f"cannot be read: {type(error).__name__}"
            parsed.reject(Code.UNDECODABLE, ObjectReference(DOCUMENT, place=where), message)
    return parsed


def _load(data: bytes) -> list[Any]:
    if data.lstrip()[:1] == b"{":
        try:
            return [msgspec.json.decode(data)]
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            # Flow-style YAML, or several JSON documents, also start with a brace.
            pass
    return load_documents(data)


def _flatten(documents: list[Any], name: str) -> Iterator[tuple[str, Any, str]]:
    """Yield each object with its place and the kind its list implies."""
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


def _add(parsed: Parsed, where: str, document: Any, listed_kind: str, admission: Admission) -> None:
    in_file = ObjectReference(DOCUMENT, place=where)
    if not isinstance(document, dict):
        parsed.reject(Code.INVALID, in_file, "not a Kubernetes object (no mapping)")
        return
    kind = document.get("kind") or listed_kind
    if not isinstance(kind, str) or not kind:
        parsed.reject(Code.INVALID, in_file, "kind: required")
        return
    kind = kind[:_MAX_NAME_CHARACTERS]
    if kind not in _KINDS:
        _ignore(parsed, where, kind)
        return
    group, versions, struct = _KINDS[kind]
    version = document.get("apiVersion") or (versions[0] if listed_kind else "")
    key = _find_key(document, namespaced=struct in (Service, EndpointSlice))
    reference = ObjectReference(kind, key, place=where)
    if version not in versions:
        if isinstance(version, str) and _group(version) != group and version:
            _count(parsed, f"{version} {kind}")
        else:
            message = f"apiVersion: {version!r}: use {versions[0]}"
            parsed.reject(Code.INVALID, reference, message)
        return
    try:
        item: KubeObject = msgspec.convert(document, struct)
    except (msgspec.ValidationError, RecursionError) as error:
        parsed.reject(Code.UNDECODABLE, reference, _put_field_first(str(error)))
        return
    admitted = admission(item)
    if isinstance(admitted, Admitted):
        parsed.objects.append(admitted.object)
        for message in admitted.notices:
            parsed.notice(Code.NOT_ALLOCATED, reference, message)
    else:
        for message in admitted.reasons:
            parsed.reject(Code.INVALID, reference, message)


def _ignore(parsed: Parsed, where: str, kind: str) -> None:
    """Count an object of another kind, unless the kind is a misspelling of a known kind."""
    close = find_similar(kind, _KINDS, likeness=_MIN_SIMILARITY)
    if not close:
        _count(parsed, kind)
        return
    message = f"kind: {kind!r} is unknown; did you mean {close[0]}?"
    parsed.reject(Code.UNKNOWN_KIND, ObjectReference(DOCUMENT, place=where), message)


def _count(parsed: Parsed, kind: str) -> None:
    if kind in parsed.ignored or len(parsed.ignored) < _MAX_IGNORED_KINDS:
        parsed.ignored[kind] += 1


def _group(api_version: str) -> str:
    return api_version.rpartition("/")[0]


def _find_key(document: dict[Any, Any], *, namespaced: bool) -> str:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict) or not isinstance(metadata.get("name"), str):
        return ""
    name = metadata["name"][:_MAX_NAME_CHARACTERS]
    namespace = str(metadata.get("namespace") or "default")[:_MAX_NAME_CHARACTERS]
    return f"{namespace}/{name}" if namespaced else name


def _put_field_first(error: str) -> str:
    """Turn "what - at `$.path`" around: the path is what a reader looks for."""
    what, separator, place = error.rpartition(" - at `$.")
    return f"{place.rstrip('`')}: {what}" if separator else error
