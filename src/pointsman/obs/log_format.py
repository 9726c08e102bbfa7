"""Log lines as Kubernetes components write them: klog text and its JSON form.

Tools and habits around a cluster parse these two formats, so both are kept exactly: the klog header and `key="value"`
pairs, and `ts` (milliseconds), `caller`, `msg`, `v` or `err` in JSON.

Whatever a message holds, nothing of it starts a line: messages, ours and other libraries', are quoted, and what may have
several lines (values, tracebacks) is indented. Both are cut at a length that no honest one has.
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
from pointsman.text import escape_json, escape_lines

LONGEST_VALUE = 8192
"""Characters of a message, value or traceback; the rest is left out and counted."""

_SEVERITY = {logging.WARNING: "W", logging.ERROR: "E", logging.CRITICAL: "F"}


def fields_of(record: logging.LogRecord) -> Mapping[str, object]:
    """The key/value pairs of a record made by `pointsman.obs.log`; other libraries give none."""
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
        line = header + _quoted(_shown(record.getMessage()))
        line += "".join(f" {key}={_text_value(key, value)}" for key, value in fields_of(record).items())
        if record.exc_info:
            line += "\n" + _indented(_shown(self.formatException(record.exc_info)))
        return line


class JsonFormatter(logging.Formatter):
    """One JSON object per line; errors carry `err` and no `v`, as upstream."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": round(record.created * 1000, 3),
            "caller": "/".join(PurePath(record.pathname).parts[-2:]) + f":{record.lineno}",
            "msg": _shown(record.getMessage()),
        }
        if record.levelno < logging.ERROR:
            line["v"] = getattr(record, "v", 0)
        for key, value in fields_of(record).items():
            line[key] = REDACTED if is_secret_key(key) else _json_value(value)
        if record.exc_info:
            line["stacktrace"] = _shown(self.formatException(record.exc_info))
        return _compact(line)


def _json_value(value: object) -> object:
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (str, BaseException)):
        return _shown(str(value))
    if isinstance(value, Mapping):
        return {
            _shown(str(key)): REDACTED if is_secret_key(str(key)) else _json_value(item)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_json_value(item) for item in value]
    return _shown(str(value))


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
        return f"<\n{_indented(plain)}\n >" if "\n" in plain else _quoted(plain)
    return _compact(plain)


def _shown(text: str) -> str:
    """Without secrets, of bounded length, and text whatever it was: the name of a file need not be."""
    if len(text) > LONGEST_VALUE:
        text = f"{text[:LONGEST_VALUE]}... ({len(text) - LONGEST_VALUE} more characters)"
    return redacted(text.encode(errors="backslashreplace").decode())


def _indented(text: str) -> str:
    return "\n".join(f"\t{line}" for line in escape_lines(text))


def _quoted(text: str) -> str:
    return escape_json(json.dumps(text, ensure_ascii=False))


def _compact(value: Any) -> str:
    return escape_json(msgspec.json.encode(value, enc_hook=str).decode())
