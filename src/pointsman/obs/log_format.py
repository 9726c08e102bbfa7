"""Log lines as Kubernetes components write them: klog text and its JSON form.

Tools and habits around a cluster parse these two formats, so both are kept exactly: the klog header and `key="value"`
pairs, and `ts` (milliseconds), `caller`, `msg`, `v` or `err` in JSON.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import msgspec

from pointsman.obs.redact import REDACTED, is_secret_key, redacted

_SEVERITY = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}


def fields_of(record: logging.LogRecord) -> Mapping[str, object] | None:
    """The key/value pairs of a record made by `pointsman.obs.log`; None for one made by another library."""
    return getattr(record, "fields", None)


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
        fields = fields_of(record)
        if fields is None:
            line = header + redacted(record.getMessage())
        else:
            line = header + _quoted(redacted(record.getMessage()))
            line += "".join(f" {key}={_text_value(key, value)}" for key, value in fields.items())
        if record.exc_info:
            line += "\n" + redacted(self.formatException(record.exc_info))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line; errors carry `err` and no `v`, as upstream."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": round(record.created * 1000, 3),
            "caller": "/".join(PurePath(record.pathname).parts[-2:]) + f":{record.lineno}",
            "msg": redacted(record.getMessage()),
        }
        if record.levelno < logging.ERROR:
            line["v"] = getattr(record, "v", 0)
        for key, value in (fields_of(record) or {}).items():
            line[key] = REDACTED if is_secret_key(key) else _json_value(value)
        if record.exc_info:
            line["stacktrace"] = redacted(self.formatException(record.exc_info))
        return msgspec.json.encode(line, enc_hook=str).decode()


def _json_value(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str):
        return redacted(value)
    if isinstance(value, BaseException):
        return redacted(str(value))
    if isinstance(value, Mapping):
        return {
            str(key): REDACTED if is_secret_key(str(key)) else _json_value(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_json_value(item) for item in value]
    return redacted(str(value))


def _text_value(key: str, value: object) -> str:
    if is_secret_key(key):
        return f'"{REDACTED}"'
    plain = _json_value(value)
    if plain is None:
        return "null"
    if isinstance(plain, bool):
        return "true" if plain else "false"
    if isinstance(plain, (int, float)):
        return str(plain)
    if isinstance(plain, str):
        if "\n" in plain:
            indented = "\n".join(f"\t{line}" for line in plain.splitlines())
            return f"<\n{indented}\n >"
        return _quoted(plain)
    return _compact(plain)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _compact(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
