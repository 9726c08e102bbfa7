"""Certificates for tests of TLS, made by openssl, and the settings of a server that shows them."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path


def make_certificates(directory: Path) -> None:
    """A CA, a server certificate for 127.0.0.1 and kubernetes.default, a client certificate; and another CA."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=directory, check=True, capture_output=True)

    for name in ("ca", "other"):
        openssl(
            *(
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
            ),
            *("-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", f"/CN={name}"),
        )
    for name, names in (("server", "IP:127.0.0.1,DNS:kubernetes.default"), ("client", "DNS:client")):
        openssl(
            *("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"),
        )
        (directory / "san").write_text(f"subjectAltName={names}", encoding="utf-8")
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", "2", "-extfile", "san", "-out", f"{name}.crt"),
        )


def server_tls(pki: Path, *, demand_client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "server.crt", pki / "server.key")
    if demand_client:
        context.load_verify_locations(pki / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
    return context
