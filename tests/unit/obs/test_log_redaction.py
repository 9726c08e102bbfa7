"""No credential reaches a log line, at any verbosity, in either format."""

import io

import pytest

from pointsman.obs.log import LogSettings, configure, get_log
from pointsman.obs.redact import redact

JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IiJ9.eyJpc3MiOiJrdWJlcm5ldGVzL3NlcnZpY2VhY2NvdW50In0.c2lnbmF0dXJl"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        (f"Authorization: Bearer {JWT}", JWT),
        ("authorization: bearer abcdef.012345", "abcdef.012345"),
        ("headers={'Authorization': 'Basic dXNlcjpwYXNz'}", "dXNlcjpwYXNz"),
        ('{"Authorization":"Bearer s3cr3t-t0ken"}', "s3cr3t-t0ken"),
        ('\\"token\\": \\"s3cr3t\\"', "s3cr3t"),
        ("token=s3cr3t&x=1", "s3cr3t"),
        ("id-token: s3cr3t", "s3cr3t"),
        ("password: hunter22", "hunter22"),
        ("client-key-data: QUJDREVG", "QUJDREVG"),
        ("client-certificate-data: QUJDREVG", "QUJDREVG"),
        ("certificate-authority-data: QUJDREVG", "QUJDREVG"),
        ("client-secret=s3cr3t", "s3cr3t"),
        (f"read {PEM} from file", "MIIEowIBAAKCAQEA"),
        ("truncated -----BEGIN CERTIFICATE-----\nMIIB", "MIIB"),
        ("blob LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVk= end", "LS0tLS1CRUdJTiBSU0EgUFJJVkFURSBLRVk="),
        (f"bare {JWT}", JWT),
        ("https://user:hunter22@proxy:3128/", "hunter22"),
    ],
)
def test_credential_is_removed(text: str, secret: str) -> None:
    assert secret not in redact(text)
    assert "<redacted>" in redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "token file rotated",
        "tokenFile=/var/run/secrets/token",
        "basic settings of the bearer plane",
        "https://10.96.0.1:443/api/v1/services?watch=1&resourceVersion=12",
        "default/kubernetes:https tcp [fd00::1]:443",
        'node="n1" services=12',
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize("form", ["text", "json"])
def test_every_part_of_a_line_is_covered(form: str) -> None:
    stream = io.StringIO()
    configure(LogSettings(format=form, verbosity=10), stderr=stream)
    try:
        log = get_log("pointsman.redaction")
        log.info(f"message Bearer {JWT}", v=10)
        log.info(
            "fields", token="opaque1", headers={"Authorization": "opaque2"}, items=[f"Bearer {JWT}"], text=PEM
        )
        try:
            raise ValueError(f"Authorization: Bearer {JWT}")
        except ValueError as problem:
            log.exception("failed", err=problem)
    finally:
        configure(LogSettings())
    written = stream.getvalue()
    for secret in (JWT, "opaque1", "opaque2", "MIIEowIBAAKCAQEA"):
        assert secret not in written
