"""OCI layouts as archives: images for one architecture or several, and charts. No daemon and no registry is needed.

Same content, same bytes: names are sorted, owners are root, times are the commit's, and gzip's header is empty. With one more
file, the archive of one image is also what every `docker load` reads.
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

Descriptor = dict[str, Any]


class Layer(NamedTuple):
    """A part of the file system, packed."""

    packed: bytes
    unpacked_digest: str
    comment: str


class Image(NamedTuple):
    """What runs, and how."""

    architecture: str
    epoch: int
    labels: Mapping[str, str]
    environment: Sequence[str]
    entrypoint: Sequence[str]
    command: Sequence[str]
    layers: Sequence[Layer]


class Layout:
    """The blobs of one archive."""

    def __init__(self, name: str, version: str, epoch: int) -> None:
        self.reference = f"{name}:{version}"
        self._version = version
        self._epoch = epoch
        self._files = {"oci-layout": encode_json({"imageLayoutVersion": "1.0.0"})}

    def add(self, media_type: str, content: bytes) -> Descriptor:
        digest = compute_digest(content)
        self._files[_build_blob_name(digest)] = content
        return {"mediaType": media_type, "digest": digest, "size": len(content)}

    def add_manifest(
        self, config: Descriptor, layers: Sequence[Descriptor], annotations: Mapping[str, str]
    ) -> Descriptor:
        return self.add(
            MANIFEST,
            encode_json(
                {
                    "schemaVersion": 2,
                    "mediaType": MANIFEST,
                    "config": config,
                    "layers": layers,
                    "annotations": dict(annotations),
                }
            ),
        )

    def add_image(self, image: Image) -> Descriptor:
        config = self.add(CONFIG, encode_json(build_configuration(image)))
        layers = [self.add(LAYER, each.packed) for each in image.layers]
        for_docker = {
            "Config": _build_blob_name(config["digest"]),
            "RepoTags": [self.reference],
            "Layers": [_build_blob_name(each["digest"]) for each in layers],
        }
        self._files["manifest.json"] = encode_json([for_docker])
        platform = {"architecture": image.architecture, "os": "linux"}
        return {**self.add_manifest(config, layers, image.labels), "platform": platform}

    def add_index(self, manifests: Sequence[Descriptor], annotations: Mapping[str, str]) -> Descriptor:
        """Return one entry for images of several architectures, which old versions of `docker load` cannot read."""
        self._files.pop("manifest.json", None)
        index = {
            "schemaVersion": 2,
            "mediaType": INDEX,
            "manifests": manifests,
            "annotations": dict(annotations),
        }
        return self.add(INDEX, encode_json(index))

    def to_archive(self, entry: Descriptor) -> bytes:
        """Return an uncompressed tar file in which `entry` has the layout's name and version."""
        annotations = {
            "io.containerd.image.name": f"docker.io/library/{self.reference}",
            "org.opencontainers.image.ref.name": self._version,
        }
        named = {**entry, "annotations": annotations}
        index = encode_json({"schemaVersion": 2, "mediaType": INDEX, "manifests": [named]})
        output = io.BytesIO()
        with tarfile.open(fileobj=output, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name, content in sorted({**self._files, "index.json": index}.items()):
                add_bytes(tar, name, content, self._epoch)
        return output.getvalue()


def build_layer(root: Path, names: Iterable[str], epoch: int, comment: str) -> Layer:
    """The files and directories `names` of a tree, with all that is below them."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted({found for name in names for found in _with_parents_and_all_below(root, name)}):
            _add(tar, root, path, epoch)
    content = output.getvalue()
    return Layer(gzip.compress(content, 6, mtime=0), compute_digest(content), comment)


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


def add_bytes(tar: tarfile.TarFile, name: str, content: bytes, epoch: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mtime, entry.mode = len(content), epoch, 0o644
    tar.addfile(entry, io.BytesIO(content))


def build_configuration(image: Image) -> dict[str, Any]:
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
        "rootfs": {"type": "layers", "diff_ids": [each.unpacked_digest for each in image.layers]},
        "history": [{"created": created, "created_by": each.comment} for each in image.layers],
    }


def unpack(content: bytes, root: Path) -> dict[str, Any]:
    """Unpack one image as a runtime does: check every digest, write the files, return the configuration."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = {member.name: _read(tar, member) for member in tar if member.isreg()}
    for name, blob in files.items():
        if name.startswith("blobs/") and _build_blob_name(compute_digest(blob)) != name:
            raise ValueError(f"{name} holds other bytes than its name says")
    (entry,) = json.loads(files["index.json"])["manifests"]
    manifest = json.loads(files[_build_blob_name(entry["digest"])])
    configured: dict[str, Any] = json.loads(files[_build_blob_name(manifest["config"]["digest"])])
    for part, digest in zip(manifest["layers"], configured["rootfs"]["diff_ids"], strict=True):
        unpacked = gzip.decompress(files[_build_blob_name(part["digest"])])
        if compute_digest(unpacked) != digest:
            raise ValueError("a layer holds other bytes than the configuration says")
        with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
            tar.extractall(root, **AS_THEY_ARE)
    return configured


def _read(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    return b"" if file is None else file.read()


def compute_digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _build_blob_name(digest: str) -> str:
    return "blobs/" + digest.replace(":", "/")


def encode_json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
