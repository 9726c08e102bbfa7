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


def make_client_certificate(directory: Path, name: str, subject: str, *, ca: str = "ca") -> None:
    """NAME.crt, signed by this CA of `make_certificates`, and NAME.key."""
    request = (
        "req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {0}.key -out {0}.csr -subj {1}"
    )
    sign = "x509 -req -in {0}.csr -CA {1}.crt -CAkey {1}.key -CAcreateserial -days 2 -out {0}.crt"
    for command in (request.format(name, subject), sign.format(name, ca)):
        subprocess.run(["openssl", *command.split()], cwd=directory, check=True, capture_output=True)


def server_tls(pki: Path, *, demand_client: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pki / "server.crt", pki / "server.key")
    if demand_client:
        context.load_verify_locations(pki / "ca.crt")
        context.verify_mode = ssl.CERT_REQUIRED
    return context
