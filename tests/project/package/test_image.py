"""The pure parts of the image: the same tree gives the same bytes, and a container starts as the Containerfile says.

`make image` builds a whole one, unpacks it and lets it serve on a read-only root.
"""

from __future__ import annotations

import json
import os
import re
import tarfile
from io import BytesIO
from pathlib import Path

import pytest
from scripts.release import debian_files, oci
from scripts.release.image import build_labels, parse_start
from scripts.release.source import ROOT, Source

SOURCE = Source("9.8.7", "0123abc", 1_700_000_000)
START = parse_start((ROOT / "deploy/image/Containerfile").read_text())


def tree(root: Path, *, mode: int = 0o644, time: int = 1, backwards: bool = False) -> Path:
    files = {"usr/bin/tool": "#!", "usr/lib/a.py": "a = 1\n", "opt/p/b": "b"}
    for name, text in sorted(files.items(), reverse=backwards):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
        (root / name).chmod(0o700 if name.endswith("tool") else mode)
        os.utime(root / name, (time, time))
    (root / "bin").symlink_to("usr/bin")
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    return root


def build(root: Path, architecture: str = "amd64") -> oci.Image:
    layers = (
        oci.build_layer(root, ["bin", "tmp", "usr"], SOURCE.epoch, "system"),
        oci.build_layer(root, ["opt/p"], SOURCE.epoch, "program"),
    )
    return oci.Image(architecture, SOURCE.epoch, build_labels(SOURCE), *START, layers)


def packed(root: Path) -> bytes:
    layout = oci.Layout("pointsman", "9.8.7", SOURCE.epoch)
    return layout.to_archive(layout.add_image(build(root)))


def read(archive: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=BytesIO(archive)) as tar:
        return {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]


def test_the_same_tree_gives_the_same_bytes(tmp_path: Path) -> None:
    """Whatever the clock, the umask, the owner and the order in which files were made."""
    one = packed(tree(tmp_path / "one"))
    other = packed(tree(tmp_path / "other", mode=0o600, time=1_800_000_000, backwards=True))
    assert one == other


def test_layers_come_back_as_they_were(tmp_path: Path) -> None:
    root = tmp_path / "back"
    configured = oci.unpack(packed(tree(tmp_path / "tree")), root)
    assert (root / "usr/lib/a.py").read_text() == "a = 1\n"
    assert (root / "opt/p/b").read_text() == "b"
    assert (root / "bin").readlink() == Path("usr/bin")
    assert (root / "usr/bin/tool").stat().st_mode & 0o777 == 0o755
    assert (root / "usr/lib/a.py").stat().st_mtime == SOURCE.epoch
    assert (root / "tmp").stat().st_mode & 0o7777 == 0o1777
    assert configured["created"] == "2023-11-14T22:13:20Z"
    assert [entry["created_by"] for entry in configured["history"]] == ["system", "program"]


def test_bytes_that_were_changed_are_noticed(tmp_path: Path) -> None:
    content = packed(tree(tmp_path / "tree"))
    with tarfile.open(fileobj=BytesIO(content)) as tar:
        largest = max(tar.getmembers(), key=lambda member: member.size)
    broken = bytearray(content)
    broken[largest.offset_data + 40] ^= 1
    with pytest.raises(ValueError, match="other bytes"):
        oci.unpack(bytes(broken), tmp_path / "back")


def test_a_container_starts_as_one_of_the_containerfile(tmp_path: Path) -> None:
    configured = oci.build_configuration(build(tree(tmp_path / "tree")))["config"]
    assert (configured["Entrypoint"], configured["Cmd"]) == (["pointsman"], ["run"])
    assert configured["Env"] == [
        "PATH=/opt/pointsman/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONOPTIMIZE=2",
        "PYTHONUNBUFFERED=1",
        "PYTHONDONTWRITEBYTECODE=1",
    ]
    assert configured["Labels"]["org.opencontainers.image.version"] == "9.8.7"
    assert configured["Labels"]["org.opencontainers.image.revision"] == "0123abc"
    assert configured["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_loaders_of_both_kinds_find_name_and_layers(tmp_path: Path) -> None:
    files = read(packed(tree(tmp_path / "tree")))
    (entry,) = json.loads(files["index.json"])["manifests"]
    assert entry["platform"] == {"architecture": "amd64", "os": "linux"}
    assert entry["annotations"]["io.containerd.image.name"] == "docker.io/library/pointsman:9.8.7"
    (docker,) = json.loads(files["manifest.json"])
    assert docker["RepoTags"] == ["pointsman:9.8.7"]
    assert {docker["Config"], *docker["Layers"]} <= set(files)
    manifest = json.loads(files["blobs/" + entry["digest"].replace(":", "/")])
    assert manifest["annotations"] == build_labels(SOURCE)


def test_one_index_leads_to_the_image_of_every_architecture(tmp_path: Path) -> None:
    layout = oci.Layout("pointsman", "9.8.7", SOURCE.epoch)
    root = tree(tmp_path / "tree")
    entries = [layout.add_image(build(root, architecture)) for architecture in ("amd64", "arm64")]
    files = read(layout.to_archive(layout.add_index(entries, build_labels(SOURCE))))
    (top,) = json.loads(files["index.json"])["manifests"]
    assert top["mediaType"] == oci.INDEX
    assert "manifest.json" not in files, "docker load would take the last image for the only one"
    for entry in json.loads(files["blobs/" + top["digest"].replace(":", "/")])["manifests"]:
        manifest = json.loads(files["blobs/" + entry["digest"].replace(":", "/")])
        config = json.loads(files["blobs/" + manifest["config"]["digest"].replace(":", "/")])
        assert config["architecture"] == entry["platform"]["architecture"]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "deploy/image").glob("packages.*.lock")), ids=lambda p: p.name
)
def test_every_debian_package_is_pinned_by_hash(path: Path) -> None:
    pinned = debian_files.read_pinned(path.name.split(".")[1])
    assert [each.name for each in pinned] == sorted(debian_files.PACKAGES)
    for each in pinned:
        assert re.fullmatch(r"[0-9a-f]{64}", each.sha256)
        assert each.path.startswith(("debian/pool/", "debian-security/pool/"))


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("usr/share/doc/libc6/copyright", False),
        ("usr/lib/x86_64-linux-gnu/gconv/UTF-16.so", False),
        ("usr/lib/x86_64-linux-gnu/libc.so.6", True),
        ("usr/lib/python3.11/unittest/mock.py", False),
        ("usr/lib/python3.11/asyncio/unittest.py", True),
        ("usr/lib/python3.11/lib-dynload/_ssl.cpython-311-x86_64-linux-gnu.so", True),
        ("usr/lib/python3.11/lib-dynload/_sqlite3.cpython-311-x86_64-linux-gnu.so", False),
    ],
)
def test_only_what_runs_is_taken(name: str, kept: bool) -> None:
    assert debian_files.is_wanted(name) is kept


def test_files_go_where_the_merged_usr_has_them() -> None:
    assert (
        debian_files.move_below_usr("lib/x86_64-linux-gnu/libc.so.6") == "usr/lib/x86_64-linux-gnu/libc.so.6"
    )
    assert debian_files.move_below_usr("sbin") == "usr/sbin"
    assert debian_files.move_below_usr("usr/bin/python3.11") == "usr/bin/python3.11"
    assert debian_files.move_below_usr("libexec/x") == "libexec/x"


def test_only_what_the_containerfile_copies_goes_to_a_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    copies = re.findall(
        r"^COPY (?!--from)(.*) /src", (ROOT / "deploy/image/Containerfile").read_text(), re.MULTILINE
    )
    assert "*" in ignored
    assert sent == {word for line in copies for word in line.split()}
