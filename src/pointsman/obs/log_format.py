"""Log lines as Kubernetes components write them: klog text and its JSON form.

Tools and habits around a cluster parse these two formats, so both are kept exactly: the klog header and `key="value"`
pairs, and `ts` (milliseconds), `caller`, `msg`, `v` or `err` in JSON.

No message can forge a line: messages, those of other libraries included, are quoted, and what may have several lines
(values, tracebacks) is indented. Each is truncated at `MAX_VALUE_CHARACTERS`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from pointsman.obs.redact import REDACTED, is_secret_key, redact
from pointsman.text import escape_json, escape_lines

MAX_VALUE_CHARACTERS = 8192
"""Of a message, value or traceback; the rest is truncated and counted."""

_SEVERITY = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}


def get_fields(record: logging.LogRecord) -> Mapping[str, object]:
    """Return the key/value pairs of a record of `pointsman.obs.log`; other libraries have none."""
    return getattr(record, "fields", {})


class TextFormatter(logging.Formatter):
    """klog's text: `I1115 22:34:35.000123   4711 file.py:12] "Message" key="value"`."""

    def format(self, record: logging.LogRecord) -> str:
        severity = _SEVERITY.get(record.levelno, "I")
        when = time.localtime(record.created)
        microseconds = int(record.created % 1 * 1_000_000)
        header = (
            f"{severity}{when.tm_mon:02}{when.tm_mday:02} {when.tm_hour:02}:{when.tm_min:02}:{when.tm_sec:02}"
            f".{microseconds:06} {record.process or 0:7} {record.filename}:{record.lineno}] "
        )
        line = header + _quote(_clean(record.getMessage()))
        line += "".join(f" {key}={_format_value(key, value)}" for key, value in get_fields(record).items())
        if record.exc_info:
            line += "\n" + _indent(_clean(self.formatException(record.exc_info)))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line; errors carry `err` and no `v`, as upstream."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": round(record.created * 1000, 3),
            "caller": "/".join(PurePath(record.pathname).parts[-2:]) + f":{record.lineno}",
            "msg": _clean(record.getMessage()),
        }
        if record.levelno < logging.ERROR:
            line["v"] = getattr(record, "v", 0)
        for key, value in get_fields(record).items():
            line[key] = REDACTED if is_secret_key(key) else _to_json_value(value)
        if record.exc_info:
            line["stacktrace"] = _clean(self.formatException(record.exc_info))
        return _encode(line)


def _to_json_value(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (str, BaseException)):
        return _clean(str(value))
    if isinstance(value, Mapping):
        return {
            _clean(str(key)): REDACTED if is_secret_key(str(key)) else _to_json_value(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_to_json_value(item) for item in value]
    return _clean(str(value))


def _format_value(key: str, value: object) -> str:
    if is_secret_key(key):
        return f'"{REDACTED}"'
    plain = _to_json_value(value)
    if plain is None:
        return "null"
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, (int, float)):
        return str(plain)
    if isinstance(plain, str):
        return f"<\n{_indent(plain)}\n >" if "\n" in plain else _quote(plain)
    return _encode(plain)


def _clean(text: str) -> str:
    """Return the text without credentials, of bounded length, and encodable: the name of a file need not be."""
    if len(text) > MAX_VALUE_CHARACTERS:
        text = f"{text[:MAX_VALUE_CHARACTERS]}... ({len(text) - MAX_VALUE_CHARACTERS} more characters)"
    return redact(text.encode(errors="backslashreplace").decode())


def _indent(text: str) -> str:
    return "\n".join(f"\t{line}" for line in escape_lines(text))


def _quote(text: str) -> str:
    return escape_json(json.dumps(text, ensure_ascii=False))


def _encode(value: Any) -> str:
    return escape_json(msgspec.json.encode(value, enc_hook=str).decode())
