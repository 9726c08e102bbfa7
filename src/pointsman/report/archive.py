"""A bug report as one archive: parts by name, credentials taken out of each, and a list of what is inside. Pure."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from pointsman.obs.redact import redact
from pointsman.screen import PLAIN, Screen, Table, lay_out
from pointsman.text import format_size


class Part(msgspec.Struct, frozen=True):
    """One file of the archive, or why it could not be had."""

    name: str
    about: str
    """What it is, briefly."""
    content: str = ""
    missing: str = ""


def redact_parts(parts: Iterable[Part]) -> list[Part]:
    """Replace everything that looks like a token, a password, a key or a certificate."""
    return [
        msgspec.structs.replace(part, content=redact(part.content), missing=redact(part.missing))
        for part in parts
    ]


def build_archive(name: str, parts: Sequence[Part], at: float) -> bytes:
    """A .tar.gz with one directory; missing parts are listed in a file of their own."""
    files = {part.name: part.content for part in parts if not part.missing}
    missing = "".join(f"{names}: {why}\n" for names, why in _group_missing(parts))
    if missing:
        files["missing.txt"] = missing
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=int(at)) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as tar,
    ):
        for path, content in files.items():
            data = content.encode()
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mtime, entry.mode = len(data), int(at), 0o600
            tar.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def render_archive(where: str, size: int, parts: Sequence[Part], screen: Screen = PLAIN) -> str:
    """Return where the archive is and what is inside."""
    rows = [["FILE", "SIZE", "WHAT"]]
    rows += [
        [part.name, format_size(len(part.content.encode())), part.about] for part in parts if not part.missing
    ]
    lines: list[str | Table] = [Table(rows), ""]
    lines += [f"! missing: {names}: {why}" for names, why in _group_missing(parts)]
    lines.append(
        f"Wrote {where}, {format_size(size)}. Tokens, passwords, keys and certificates are removed; names and "
        "addresses of this node, its Services and their endpoints are included: check it before you publish it."
    )
    return lay_out(lines, screen)


def _group_missing(parts: Sequence[Part]) -> Iterator[tuple[str, str]]:
    """Yield missing parts and the reason, those with the same reason together."""
    for why in dict.fromkeys(part.missing for part in parts if part.missing):
        yield ", ".join(part.name for part in parts if part.missing == why), why
