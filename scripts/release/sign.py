"""`python -m scripts.release.sign KEY`: checksums of everything in dist/, and their signature by an OpenSSH key.

ssh-keygen is everywhere, and so is what verifies: see docs/install.md. deploy/allowed_signers holds the public key.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from scripts.release.source import DIST, ROOT

IDENTITY = "release@pointsman"
NAMESPACE = "file"
SIGNERS = ROOT / "deploy/allowed_signers"


def write_checksums(directory: Path) -> Path:
    """Write SHA256SUMS as `sha256sum --check` reads it."""
    checksums = directory / "SHA256SUMS"
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(directory.iterdir())
        if path.is_file() and not path.name.startswith(checksums.name)
    ]
    checksums.write_text("".join(lines))
    return checksums


def sign(file: Path, key: Path) -> Path:
    """Write FILE.sig; raises CalledProcessError with ssh-keygen's message on stderr."""
    signature = file.with_name(f"{file.name}.sig")
    signature.unlink(missing_ok=True)
    subprocess.run(("ssh-keygen", "-Y", "sign", "-f", str(key), "-n", NAMESPACE, str(file)), check=True)
    return signature


def verify(file: Path, signers: Path = SIGNERS) -> None:
    """Verify as docs/install.md says; raises CalledProcessError."""
    command = ("ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", IDENTITY, "-n", NAMESPACE)
    with file.open("rb") as content:
        subprocess.run((*command, "-s", f"{file}.sig"), stdin=content, check=True)


def main(arguments: list[str]) -> int:
    if not arguments:
        print("usage: python -m scripts.release.sign KEY [ALLOWED_SIGNERS]", file=sys.stderr)
        return 2
    key, *signers = map(Path, arguments)
    if not DIST.is_dir() or not any(DIST.iterdir()):
        print("dist/ is empty: run make package image", file=sys.stderr)
        return 1
    checksums = write_checksums(DIST)
    try:
        sign(checksums, key)
        verify(checksums, *signers)
    except subprocess.CalledProcessError as error:
        checksums.with_name(f"{checksums.name}.sig").unlink(missing_ok=True)
        print(f"not signed: {' '.join(error.cmd[:3])} failed", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
