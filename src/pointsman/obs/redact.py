"""Removal of credentials from text that people read, keep and paste: bearer tokens, passwords, keys, certificates.

Applied to every log value at every verbosity (CVE-2020-8565 was a token in a verbose log).
"""

from __future__ import annotations

import re

REDACTED = "<redacted>"

_SECRET_KEYS = frozenset(
    [
        "authorization",
        "token",
        "accesstoken",
        "idtoken",
        "refreshtoken",
        "bearertoken",
        "password",
        "secret",
        "clientsecret",
        "apikey",
        "cookie",
        "clientkeydata",
        "clientcertificatedata",
        "certificateauthoritydata",
        "privatekey",
    ]
)
_PATTERNS = (
    (re.compile(r"-----BEGIN [A-Z0-9 ]+-----.*?(?:-----END [A-Z0-9 ]+-----|\Z)", re.DOTALL), REDACTED),
    (re.compile(r"LS0tLS1CRUdJTi[A-Za-z0-9+/=]*"), REDACTED),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), REDACTED),
    (
        re.compile(r"\b((?:Bearer|Basic|Negotiate)\s+)(?=\S*[0-9._~+/=-])[\w.~+/-]{6,}=*", re.IGNORECASE),
        rf"\1{REDACTED}",
    ),
    (
        re.compile(
            r"((?:\bauthorization|\bpassword|\bcookie|\btoken|[-_]token|client[-_]?secret|api[-_]?key"
            r"|client-key-data|client-certificate-data|certificate-authority-data)"
            r"\\?[\"']?\s*[:=]\s*\\?[\"']?(?:(?:Bearer|Basic|Negotiate)\s+)?)"
            r"(?!<redacted>)[^\s\"'\\,;&}\]]+",
            re.IGNORECASE,
        ),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"(://[^/\s:@]*:)[^@\s/]+@"), rf"\1{REDACTED}@"),
)


def redact(text: str) -> str:
    """Return the text with everything that looks like a credential replaced."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def is_secret_key(name: str) -> bool:
    """Return whether a field of this name holds a credential, whatever its value looks like."""
    return name.replace("_", "").replace("-", "").lower() in _SECRET_KEYS
