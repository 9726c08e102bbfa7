"""Checksums and signatures: what docs/install.md tells users to do finds every change."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from scripts.release.sign import IDENTITY, SIGNERS, sign, verify, write_checksums

pytestmark = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """A throw-away key."""
    file = tmp_path / "key"
    subprocess.run(("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(file)), check=True)
    return file


def allow(key: Path, directory: Path) -> Path:
    signers = directory / "allowed_signers"
    signers.write_text(f"{IDENTITY} {key.with_name('key.pub').read_text()}")
    return signers


def test_checksums_are_as_sha256sum_reads_them(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("two")
    write_checksums(tmp_path)
    write_checksums(tmp_path)
    command = ("sha256sum", "--check", "SHA256SUMS")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "a: OK\nb: OK\n"


def test_a_signature_holds_for_these_checksums_and_this_key_only(key: Path, tmp_path: Path) -> None:
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / "a").write_text("one")
    checksums = write_checksums(dist)
    sign(checksums, key)
    assert checksums.read_text() == write_checksums(dist).read_text(), "a signature is not an artefact"
    signers = allow(key, tmp_path)
    verify(checksums, signers)
    checksums.write_text(checksums.read_text().replace("a", "b"))
    with pytest.raises(subprocess.CalledProcessError):
        verify(checksums, signers)
    sign(checksums, key)
    verify(checksums, signers)
    signers.write_text(signers.read_text().replace(IDENTITY, "other@pointsman"))
    with pytest.raises(subprocess.CalledProcessError):
        verify(checksums, signers)


def test_the_list_of_signers_holds_public_keys_of_the_identity_that_users_name() -> None:
    for line in SIGNERS.read_text().splitlines():
        if line and not line.startswith("#"):
            assert line.split()[0] == IDENTITY
            assert line.split()[1].startswith(("ssh-", "ecdsa-", "sk-"))
