"""A container image as an archive of our own: layers, a configuration, and the indices that the loaders look for.

The archive is an OCI layout; with one more file it is also what `docker load` has always read. Same tree, same bytes:
names are sorted, owners are root, times are the commit's, and gzip's header is empty.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"

AS_THEY_ARE: dict[str, Any] = {"filter": "fully_trusted"} if hasattr(tarfile, "fully_trusted_filter") else {}
"""For files whose hashes were checked. Debian 12's Python is older than the argument."""


class Layer(NamedTuple):
    """A part of the file system, packed."""

    packed: bytes
    unpacked_digest: str
    comment: str


class Image(NamedTuple):
    """What runs, and how."""

    name: str
    version: str
    architecture: str
    epoch: int
    labels: Mapping[str, str]
    environment: Sequence[str]
    entrypoint: Sequence[str]
    command: Sequence[str]


def layer(root: Path, names: Iterable[str], epoch: int, comment: str) -> Layer:
    """The files and directories `names` of a tree, with all that is below them."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted({found for name in names for found in _with_parents_and_all_below(root, name)}):
            _add(tar, root, path, epoch)
    content = output.getvalue()
    return Layer(gzip.compress(content, 9, mtime=0), _digest(content), comment)


def _with_parents_and_all_below(root: Path, name: str) -> list[str]:
    top = Path(name)
    parents = [str(parent) for parent in top.parents if str(parent) != "."]
    if (root / top).is_symlink():
        return [*parents, name]
    return [*parents, name, *(str(path.relative_to(root)) for path in (root / top).rglob("*"))]


def _add(tar: tarfile.TarFile, root: Path, name: str, epoch: int) -> None:
    path = root / name
    entry = tar.gettarinfo(str(path), arcname=name)
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mtime = epoch
    if entry.islnk():  # a second name of a file: written as a file of its own, whichever comes first
        entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
    if entry.isreg():
        entry.mode = 0o755 if entry.mode & 0o100 else 0o644
        with path.open("rb") as content:
            tar.addfile(entry, content)
        return
    if entry.isdir():
        entry.mode = 0o1777 if entry.mode & 0o1000 else 0o755
    tar.addfile(entry)


def archive(image: Image, layers: Sequence[Layer]) -> bytes:
    """The whole image as one uncompressed tar file."""
    blobs: dict[str, bytes] = {}

    def stored(media_type: str, content: bytes) -> dict[str, Any]:
        digest = _digest(content)
        blobs[digest] = content
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    parts = [stored(LAYER, each.packed) for each in layers]
    config = stored(CONFIG, _json(configuration(image, layers)))
    manifest: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config,
        "layers": parts,
        "annotations": dict(image.labels),
    }
    entry = stored(MANIFEST, _json(manifest))
    entry["platform"] = {"architecture": image.architecture, "os": "linux"}
    reference = f"{image.name}:{image.version}"
    entry["annotations"] = {
        "io.containerd.image.name": f"docker.io/library/{reference}",
        "org.opencontainers.image.ref.name": image.version,
    }
    for_docker = {
        "Config": _blob(config["digest"]),
        "RepoTags": [reference],
        "Layers": [_blob(part["digest"]) for part in parts],
    }
    files = {_blob(digest): content for digest, content in blobs.items()}
    files["oci-layout"] = _json({"imageLayoutVersion": "1.0.0"})
    files["index.json"] = _json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [entry]})
    files["manifest.json"] = _json([for_docker])
    return _tar_of(files, image.epoch)


def configuration(image: Image, layers: Sequence[Layer]) -> dict[str, Any]:
    created = datetime.fromtimestamp(image.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "created": created,
        "architecture": image.architecture,
        "os": "linux",
        "config": {
            "Env": list(image.environment),
            "Entrypoint": list(image.entrypoint),
            "Cmd": list(image.command),
            "WorkingDir": "/",
            "Labels": dict(image.labels),
        },
        "rootfs": {"type": "layers", "diff_ids": [each.unpacked_digest for each in layers]},
        "history": [{"created": created, "created_by": each.comment} for each in layers],
    }


def unpack(content: bytes, root: Path) -> dict[str, Any]:
    """The reverse, as a container runtime does it: checks every digest, writes the files, returns the configuration."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = {member.name: _read(tar, member) for member in tar if member.isreg()}
    for name, blob in files.items():
        if name.startswith("blobs/") and _blob(_digest(blob)) != name:
            raise ValueError(f"{name} holds other bytes than its name says")
    (entry,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files[_blob(entry["digest"])])
    configured: dict[str, Any] = json.loads(files[_blob(manifest["config"]["digest"])])
    for part, digest in zip(manifest["layers"], configured["rootfs"]["diff_ids"], strict=True):
        unpacked = gzip.decompress(files[_blob(part["digest"])])
        if _digest(unpacked) != digest:
            raise ValueError("a layer holds other bytes than the configuration says")
        with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
            tar.extractall(root, **AS_THEY_ARE)
    return configured


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return b"" if file is None else file.read()


def _tar_of(files: Mapping[str, bytes], epoch: int) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in sorted(files.items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
            tar.addfile(entry, io.BytesIO(content))
    return output.getvalue()


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _blob(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
