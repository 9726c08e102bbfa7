"""The archive of a bug report: what was put in is inside, credentials are not."""

from __future__ import annotations

import io
import tarfile

import pytest

from pointsman.report.archive import Part, build_archive, redact_parts, render_archive

PLANTED = [
    "Authorization: Bearer planted.secret-1234567",
    'token: "planted-secret-1234567"',
    "password=planted-secret-1234567",
    "https://user:planted-secret-1234567@api.example:6443/",
    "eyJhbGciOiJSUzI1NiJ9.planted-secret-1234567.c2lnbmF0dXJl",
    "client-key-data: planted-secret-1234567",
    "-----BEGIN CERTIFICATE-----\nplanted-secret-1234567\n-----END CERTIFICATE-----",
    "-----BEGIN EC PRIVATE KEY-----\nplanted-secret-1234567\n-----END EC PRIVATE KEY-----",
]


@pytest.mark.parametrize("secret", PLANTED)
def test_credentials_are_taken_out_wherever_they_stand(secret: str) -> None:
    parts = redact_parts(
        [
            Part("log.txt", "log", f"before {secret} after"),
            Part("flags.txt", "flags", missing=f"said {secret}"),
        ]
    )
    packed = build_archive("report", parts, 0.0)
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        files = {member.name: tar.extractfile(member) for member in tar.getmembers()}
        texts = [file.read().decode() for file in files.values() if file is not None]
    assert sorted(files) == ["report/log.txt", "report/missing.txt"]
    assert not [text for text in texts if "planted" in text]
    assert "before " in texts[0]
    assert "planted" not in render_archive("report.tar.gz", len(packed), parts)


def test_the_same_parts_at_the_same_time_make_the_same_archive() -> None:
    parts = [Part("status.json", "status", "{}")]
    assert build_archive("report", parts, 12.0) == build_archive("report", parts, 12.0)
