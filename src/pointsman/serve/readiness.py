"""/readyz: does this node serve its packets? One line per check, in the form of Kubernetes' own verbose health pages."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pointsman.serve.messages import Response, text_response


class Check(msgspec.Struct, frozen=True):
    """One thing that must hold."""

    name: str
    reason: str = ""
    """Why it does not hold; empty when it does."""


def readyz_answer(checks: Sequence[Check]) -> Response:
    """200 when every check passes, else 503; the body names all of them either way."""
    lines = [_line(one) for one in checks]
    ready = not any(one.reason for one in checks)
    lines.append(f"readyz check {'passed' if ready else 'failed'}")
    return text_response("\n".join(lines) + "\n", 200 if ready else 503)


def _line(check: Check) -> str:
    """One, whatever the reason holds: it may quote a comment that somebody else wrote into his rules."""
    if not check.reason:
        return f"[+]{check.name} ok"
    return f"[-]{check.name} failed: {' '.join(check.reason.split())}"
