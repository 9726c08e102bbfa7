"""Log lines, verbosity, routing, and live re-configuration."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pointsman.obs import log as obs_log
from pointsman.obs.log import LogSettings, configure, get_log
from pointsman.obs.log_format import JsonFormatter, TextFormatter


class Streams:
    """Captured stdout and stderr of the log."""

    def __init__(self) -> None:
        self.out = io.StringIO()
        self.err = io.StringIO()

    def configure(self, settings: LogSettings) -> None:
        configure(settings, stdout=self.out, stderr=self.err)

    @property
    def last(self) -> str:
        return self.err.getvalue().splitlines()[-1]


@pytest.fixture
def streams() -> Iterator[Streams]:
    captured = Streams()
    captured.configure(LogSettings())
    yield captured
    configure(LogSettings())


def test_text_line_is_klogs(streams: Streams) -> None:
    get_log("pointsman.a").info(
        "Synced rules", services=12, node="n1", took=0.5, ok=True, none=None, names=["a", "b"]
    )
    assert re.fullmatch(
        r'I\d{4} \d\d:\d\d:\d\d\.\d{6} +\d+ test_log_output\.py:\d+\] "Synced rules" '
        r'services=12 node="n1" took=0\.5 ok=true none=null names=\["a","b"\]',
        streams.last,
    )


def test_severity_letters(streams: Streams) -> None:
    log = get_log("pointsman.a")
    log.warning("w")
    log.error("e", err=ValueError("broken"), name="x")
    lines = streams.err.getvalue().splitlines()
    assert [line[0] for line in lines] == ["W", "E"]
    assert lines[1].endswith('"e" err="broken" name="x"')


def test_quotes_and_newlines_cannot_forge_a_line(streams: Streams) -> None:
    get_log("pointsman.a").info('say "hi"\nI0101 forged', value='a"b', text="one\ntwo")
    lines = streams.err.getvalue().splitlines()
    assert lines[0].endswith('"say \\"hi\\"\\nI0101 forged" value="a\\"b" text=<')
    assert lines[1:] == ["\tone", "\ttwo", " >"]


FORGERY = (
    'ready\nE1118 00:00:00.000000       1 x.go:1] "All rules deleted"\r\x1b[2K\x9b2J\x7f\x85\u2028\u202e'
)
HEADER = re.compile(r"[IWEF]\d{4} \d\d:\d\d")


def _lines_that_start_a_record(text: str) -> list[str]:
    return [line for line in text.splitlines() if HEADER.match(line)]


def test_no_value_message_or_traceback_of_others_starts_a_line_or_drives_a_terminal(streams: Streams) -> None:
    log = get_log("pointsman.a")
    log.info(FORGERY, name=FORGERY, names=[FORGERY], by_name={FORGERY: FORGERY})
    logging.getLogger("asyncio").error("lost: %s", FORGERY)
    try:
        raise ValueError(FORGERY)
    except ValueError as problem:
        log.exception("Unexpected", err=problem)
    written = streams.err.getvalue()
    assert len(_lines_that_start_a_record(written)) == 3
    assert not [c for c in written if not c.isprintable() and c not in "\n\t"]


def test_json_lines_hold_one_record_each_whatever_is_logged(streams: Streams) -> None:
    streams.configure(LogSettings(format="json"))
    get_log("pointsman.a").error(FORGERY, err=ValueError(FORGERY), by_name={FORGERY: FORGERY})
    logging.getLogger("asyncio").error("lost: %s", FORGERY)
    written = streams.err.getvalue()
    records = [json.loads(line) for line in written.split("\n") if line]
    assert [record["msg"] for record in records] == [FORGERY, f"lost: {FORGERY}"]
    assert not [c for c in written if not c.isprintable() and c != "\n"]


@pytest.mark.parametrize("formatter", [TextFormatter(), JsonFormatter()], ids=["text", "json"])
def test_a_name_that_is_no_text_loses_no_line(formatter: logging.Formatter) -> None:
    odd = b"\xff.yaml".decode(errors="surrogateescape")
    try:
        raise ValueError(odd)
    except ValueError as problem:
        fields = {"err": problem, "file": Path(odd), "by_name": {odd: [odd]}}
        raised = (ValueError, problem, problem.__traceback__)
        record = logging.LogRecord("a", logging.ERROR, "a.py", 1, odd, (), raised)
        record.fields = fields
    line = formatter.format(record)
    assert line.count("udcff.yaml") == 6
    assert line.encode()


def test_a_value_of_megabytes_is_cut(streams: Streams) -> None:
    get_log("pointsman.a").info("Skipped", name="x" * 3_000_000)
    assert len(streams.last) < 9000
    assert "(2991808 more characters)" in streams.last


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_of_megabytes_is_cut(streams: Streams, form: str) -> None:
    streams.configure(LogSettings(format=form))
    try:
        raise ValueError("x" * 3_000_000)
    except ValueError as problem:
        get_log("pointsman.a").exception("Unexpected", err=problem)
    assert len(streams.err.getvalue()) < 18_000


def test_json_line_is_upstreams(streams: Streams) -> None:
    streams.configure(LogSettings(format="json", verbosity=3))
    get_log("pointsman.a").info("Synced", v=3, services=12, who={"a": 1})
    line = json.loads(streams.last)
    assert line["msg"] == "Synced"
    assert line["v"] == 3
    assert line["services"] == 12
    assert line["who"] == {"a": 1}
    assert re.fullmatch(r"obs/test_log_output\.py:\d+", line["caller"])
    assert 1e12 < line["ts"] < 1e13


def test_json_errors_have_err_and_no_v(streams: Streams) -> None:
    streams.configure(LogSettings(format="json"))
    get_log("pointsman.a").error("Failed", err=OSError(5, "io"))
    line = json.loads(streams.last)
    assert line["err"] == "[Errno 5] io"
    assert "v" not in line


@pytest.mark.parametrize("form", ["text", "json"])
def test_traceback_is_kept(streams: Streams, form: str) -> None:
    streams.configure(LogSettings(format=form))
    try:
        raise RuntimeError("boom")
    except RuntimeError as problem:
        get_log("pointsman.a").exception("Unexpected", err=problem)
    assert "test_traceback_is_kept" in streams.err.getvalue()


def test_verbosity_decides(streams: Streams) -> None:
    log = get_log("pointsman.kube.watch")
    streams.configure(LogSettings(verbosity=2))
    log.info("two", v=2)
    log.info("three", v=3)
    assert log.is_enabled(2)
    assert not log.is_enabled(3)
    assert "two" in streams.err.getvalue()
    assert "three" not in streams.err.getvalue()


@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        ("watch", True),
        ("wat*", True),
        ("pointsman/kube/*", True),
        ("kube", False),
        ("pointsman/sync/*", False),
    ],
)
def test_vmodule_raises_single_modules(streams: Streams, pattern: str, matches: bool) -> None:
    streams.configure(LogSettings(vmodule=((pattern, 6),)))
    assert get_log("pointsman.kube.watch").is_enabled(6) is matches
    assert not get_log("pointsman.other").is_enabled(1)


def test_reconfiguring_reaches_logs_made_earlier_and_writes_lines_once(streams: Streams) -> None:
    log = get_log("pointsman.early")
    assert not log.is_enabled(4)
    streams.configure(LogSettings(verbosity=4))
    obs_log.set_verbosity(5)
    assert log.threshold == 5
    log.info("once", v=5)
    assert streams.err.getvalue().count("once") == 1


def test_same_name_is_the_same_log() -> None:
    assert get_log("pointsman.x") is get_log("pointsman.x")


def test_other_libraries_come_out_in_the_same_format(streams: Streams) -> None:
    logging.getLogger("aiohttp.server").warning("odd %s", "request")
    logging.getLogger("aiohttp.access").info("not shown")
    assert re.match(r'W\d{4} .*test_log_output\.py:\d+\] "odd request"$', streams.last)
    assert "not shown" not in streams.err.getvalue()


def test_split_stream_routes_by_severity(streams: Streams) -> None:
    streams.configure(LogSettings(split_stream=True))
    get_log("pointsman.a").info("fine")
    get_log("pointsman.a").error("bad")
    assert "fine" in streams.out.getvalue()
    assert "fine" not in streams.err.getvalue()
    assert "bad" in streams.err.getvalue()


def test_buffered_lines_appear_when_full_or_flushed(streams: Streams) -> None:
    streams.configure(LogSettings(split_stream=True, info_buffer_size=500, flush_seconds=3600))
    log = get_log("pointsman.a")
    log.info("first")
    assert streams.out.getvalue() == ""
    obs_log.flush()
    assert "first" in streams.out.getvalue()
    log.info("x" * 500)
    assert "xxx" in streams.out.getvalue()


def test_reconfiguring_loses_no_buffered_line(streams: Streams) -> None:
    streams.configure(LogSettings(split_stream=True, info_buffer_size=5000, flush_seconds=3600))
    get_log("pointsman.a").info("kept")
    streams.configure(LogSettings())
    assert "kept" in streams.out.getvalue()


def test_buffered_lines_appear_after_the_flush_time(streams: Streams) -> None:
    import threading

    written = threading.Event()

    class Noticing(io.StringIO):
        def write(self, text: str) -> int:
            written.set()
            return super().write(text)

    streams.out = Noticing()
    streams.configure(LogSettings(split_stream=True, info_buffer_size=5000, flush_seconds=0.01))
    get_log("pointsman.a").info("later")
    assert written.wait(10)


def test_closed_stream_does_not_stop_the_work(streams: Streams) -> None:
    streams.err.close()
    get_log("pointsman.a").info("lost")
    streams.err = io.StringIO()
    streams.configure(LogSettings())
    get_log("pointsman.a").info("seen")
    assert "seen" in streams.err.getvalue()


def test_value_without_a_usable_text_is_survived(
    streams: Streams, capsys: pytest.CaptureFixture[str]
) -> None:
    class Hostile:
        def __str__(self) -> str:
            raise RuntimeError("no text")

    get_log("pointsman.a").info("odd", value=Hostile())
    get_log("pointsman.a").info("next")
    assert '"next"' in streams.last
    assert "no text" in capsys.readouterr().err
