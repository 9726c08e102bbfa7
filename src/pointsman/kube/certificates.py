"""Certificates and keys into TLS contexts, from files or from PEM given inline.

Errors name the field, and the file where there is one, and never hold any of the content.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pointsman.kube.access import read_material


def trust(context: ssl.SSLContext, ca: bytes | Path, field: str) -> None:
    """Trust these CA certificates. Raises ValueError."""
    text = _read_content(ca, field).decode("ascii", errors="replace")
    if "-----BEGIN CERTIFICATE-----" not in text:
        raise ValueError(f"{_format_name(ca, field)} holds no PEM certificate")
    try:
        context.load_verify_locations(cadata=text)
    except ssl.SSLError as error:
        raise ValueError(f"{_format_name(ca, field)}: {error.reason or 'not usable'}") from error


def load_pair(
    context: ssl.SSLContext, certificate: bytes | Path, key: bytes | Path, fields: tuple[str, str]
) -> None:
    """Present this certificate, with the key that belongs to it. Raises ValueError."""
    with _as_file(certificate, fields[0]) as cert_path, _as_file(key, fields[1]) as key_path:
        try:
            # An encrypted key must fail; without a callback OpenSSL would ask on the terminal.
            context.load_cert_chain(cert_path, key_path, password=lambda: b"")
        except ssl.SSLError as error:
            names = f"{_format_name(certificate, fields[0])} and {_format_name(key, fields[1])}"
            is_mismatch = error.reason == "KEY_VALUES_MISMATCH"
            reason = "the key is not that of the certificate" if is_mismatch else error.reason
            raise ValueError(f"{names}: {reason or 'not a usable pair'}") from error


@contextmanager
def _as_file(material: bytes | Path, field: str) -> Iterator[str]:
    """Yield a path that OpenSSL can open without waiting: the material is in anonymous memory, never on disk."""
    content = _read_content(material, field)
    descriptor = os.memfd_create(field, os.MFD_CLOEXEC)
    try:
        os.write(descriptor, content)
        yield f"/proc/self/fd/{descriptor}"
    finally:
        os.close(descriptor)


def _read_content(material: bytes | Path, field: str) -> bytes:
    """Return the PEM. Raises ValueError naming field and file."""
    try:
        return read_material(material)
    except OSError as error:
        raise ValueError(f"{field} {error.strerror}") from error


def _format_name(material: bytes | Path, field: str) -> str:
    return f"{field} {material}" if isinstance(material, Path) else f"{field}-data"
