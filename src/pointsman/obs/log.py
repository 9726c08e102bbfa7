"""Structured logging with klog's verbosity, on top of the standard library.

    log = get_log(__name__)
    log.info("Synced", v=2, services=12, duration=0.004)
    log.error("Cannot write sysctl", err=problem, name=name)

A disabled message costs one comparison. Where computing the values is expensive, check `log.is_enabled(4)` first. Messages
of other libraries (warnings and worse) come out in the same format. `configure` may be called at any time, from any
thread: verbosity and format can change while the process runs.
"""

from __future__ import annotations

import fnmatch
import io
import logging
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import TextIO

import msgspec

from pointsman.obs.log_format import JsonFormatter, TextFormatter
from pointsman.waiting import TokenBucket

_OWN = "pointsman"
MAX_RECENT_LINES = 1000
_MAX_RECENT_CHARACTERS = 4000
_LINES_AT_ONCE, _LINES_PER_SECOND = 20, 0.1


class LogSettings(msgspec.Struct, frozen=True):
    """Settings of the log."""

    format: str = "text"
    verbosity: int = 0
    vmodule: tuple[tuple[str, int], ...] = ()
    """Glob patterns of module names (`watch`, or with a slash of paths: `pointsman/kube/*`) and their verbosity."""
    split_stream: bool = False
    """Errors to stderr, the rest to stdout; otherwise everything to stderr."""
    info_buffer_size: int = 0
    """Bytes buffered for stdout when split."""
    flush_seconds: float = 5.0


class Log:
    """Writes the messages of one module; `threshold` is the highest verbosity that is written."""

    __slots__ = ("_logger", "threshold")

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name if name.startswith(_OWN) else f"{_OWN}.{name}")
        self.threshold = _find_threshold(self._logger.name, _state.settings)

    def is_enabled(self, v: int) -> bool:
        return v <= self.threshold

    def info(self, message: str, /, *, v: int = 0, **fields: object) -> None:
        if v <= self.threshold:
            self._logger.info(message, extra={"fields": fields, "v": v}, stacklevel=2)

    def warning(self, message: str, /, **fields: object) -> None:
        self._logger.warning(message, extra={"fields": fields, "v": 0}, stacklevel=2)

    def error(self, message: str, /, *, err: object = None, **fields: object) -> None:
        if err is not None:
            fields = {"err": err, **fields}
        self._logger.error(message, extra={"fields": fields}, stacklevel=2)

    def exception(self, message: str, /, *, err: BaseException, **fields: object) -> None:
        """Log an error with its traceback."""
        self._logger.error(message, exc_info=err, extra={"fields": {"err": err, **fields}}, stacklevel=2)


class LogLimiter:
    """Limits lines that external input can cause: of each subject some at once, then one every few seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: dict[str, TokenBucket] = {}
        self._suppressed: Counter[str] = Counter()

    def admit(self, subject: str) -> dict[str, object] | None:
        """Return the fields to add to a line, with how many were suppressed before it; None to suppress this one."""
        now = self._clock()
        bucket = self._buckets.setdefault(subject, TokenBucket(_LINES_PER_SECOND, _LINES_AT_ONCE, now))
        if bucket.wait(now):
            self._suppressed[subject] += 1
            return None
        bucket.take(now)
        suppressed = self._suppressed.pop(subject, 0)
        return {"suppressed": suppressed} if suppressed else {}


class _State:
    """What `configure` changes, shared by every Log."""

    def __init__(self) -> None:
        self.settings = LogSettings()
        self.logs: dict[str, Log] = {}
        self.handler: _Output | None = None
        self.recent: deque[str] = deque(maxlen=MAX_RECENT_LINES)
        self.lock = threading.Lock()


_state = _State()


def get_log(name: str) -> Log:
    """Return the log of a module; the same one for the same name."""
    with _state.lock:
        found = _state.logs.get(name)
        if found is None:
            found = _state.logs[name] = Log(name)
        return found


def configure(settings: LogSettings, *, stdout: TextIO | None = None, stderr: TextIO | None = None) -> None:
    """Use these settings from now on, replacing earlier ones; the streams default to the process's."""
    output = _Output(settings, stdout or sys.stdout, stderr or sys.stderr)
    with _state.lock:
        old, _state.handler = _state.handler, output
        _state.settings = settings
        for log in _state.logs.values():
            log.threshold = _find_threshold(log._logger.name, settings)
    root = logging.getLogger()
    root.addHandler(output)
    logging.getLogger(_OWN).setLevel(logging.INFO)
    if old is not None:
        root.removeHandler(old)
        old.close()


def set_verbosity(verbosity: int) -> None:
    """Change only the verbosity, as PUT /debug/flags/v does."""
    configure(msgspec.structs.replace(_state.settings, verbosity=verbosity), **_get_streams())


def list_recent_lines() -> list[str]:
    """Return the last lines as they were written, without credentials; for bug reports."""
    return list(_state.recent)


def flush() -> None:
    """Write out what is buffered; call it before the process ends."""
    if _state.handler is not None:
        _state.handler.flush()


def _get_streams() -> dict[str, TextIO]:
    handler = _state.handler
    return {} if handler is None else {"stdout": handler.stdout, "stderr": handler.stderr}


def _find_threshold(name: str, settings: LogSettings) -> int:
    path = name.replace(".", "/")
    base = name.rpartition(".")[2]
    for pattern, verbosity in settings.vmodule:
        if fnmatch.fnmatchcase(path if "/" in pattern else base, pattern):
            return verbosity
    return settings.verbosity


class _Output(logging.Handler):
    """Formats records and routes them to the streams, buffering stdout if configured."""

    def __init__(self, settings: LogSettings, stdout: TextIO, stderr: TextIO) -> None:
        super().__init__()
        self.stdout = stdout
        self.stderr = stderr
        self._settings = settings
        self._buffer = io.StringIO()
        self._timer: threading.Timer | None = None
        self.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record) + "\n"
        except Exception:  # noqa: BLE001  a value that cannot be formatted must not fail the caller
            self.handleError(record)
            return
        _state.recent.append(line[:_MAX_RECENT_CHARACTERS])
        split = self._settings.split_stream and record.levelno < logging.ERROR
        if not split:
            _write(self.stderr, line)
        elif self._settings.info_buffer_size <= 0:
            _write(self.stdout, line)
        else:
            self._buffer.write(line)
            if self._buffer.tell() >= self._settings.info_buffer_size:
                self._write_buffer()
            elif self._timer is None:
                self._timer = threading.Timer(self._settings.flush_seconds, self.flush)
                self._timer.daemon = True
                self._timer.start()

    def flush(self) -> None:
        with self.lock or threading.RLock():
            self._write_buffer()

    def close(self) -> None:
        self.flush()
        super().close()

    def _write_buffer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._buffer.tell():
            _write(self.stdout, self._buffer.getvalue())
            self._buffer = io.StringIO()


def _write(stream: TextIO, text: str) -> None:
    """Write a line; a closed or broken stream loses it, without an error."""
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):
        return
