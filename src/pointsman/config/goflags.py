"""Command-line flags in the syntax of Go's pflag, so that a command line written for kube-proxy works unchanged.

`--name=value`, `--name value`, bare `--switch`, `--switch=false`, `-v=2`, `-v 2`, `-v2`; underscores in names count
as dashes; lists and maps are separated by commas and add up when repeated. Every mistake on the command line is
reported, not just the first.
"""

from __future__ import annotations

import csv
import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from pointsman import KUBERNETES_VERSION
from pointsman.config.defaults import with_file_defaults
from pointsman.config.durations import bytes_from_quantity, duration_from_text, format_duration
from pointsman.config.options import RunOptions
from pointsman.config.types import (
    DurationOrNanoseconds,
    Int32,
    KubeProxyConfiguration,
    Quantity,
    UInt32,
    VModuleItem,
)
from pointsman.errors import ConfigError
from pointsman.model.addresses import address_from_text, port_from_text, split_host_port
from pointsman.text import did_you_mean

_INTEGER = re.compile(
    r"([+-]?)(0[xX](?:_?[0-9a-fA-F])+|0[bB](?:_?[01])+|0[oO]?(?:_?[0-7])+|[1-9](?:_?[0-9])*|0)"
)
_TRUE = frozenset(("1", "t", "T", "TRUE", "true", "True"))
_FALSE = frozenset(("0", "f", "F", "FALSE", "false", "False"))
_VERSION = re.compile(r"v[0-9]+\.[0-9]+\.[0-9]+([-+][0-9A-Za-z.+-]*)?")


class Kind(enum.Enum):
    """The type of a flag's value, named as in the help text."""

    STRING = "string"
    BOOL = ""
    INT32 = "int32"
    UINT32 = "Level"
    FLOAT32 = "float32"
    DURATION = "duration"
    LIST = "strings"
    SWITCHES = "mapStringBool"
    IP = "ip"
    IP_PORT = "ipport"
    QUANTITY = "quantity"
    VMODULE = "pattern=N,..."
    VERSION = "version"


Check = Callable[[Any], Iterable[tuple[object, str]]]
"""Yields each bad part of a flag's value with the rule that it breaks."""


class Flag(msgspec.Struct, frozen=True):
    """One flag of a command."""

    name: str
    kind: Kind
    help: str
    group: str = ""
    default: str = ""
    fields: tuple[str, ...] = ()
    """Dotted attributes of KubeProxyConfiguration that it sets."""
    shorthand: str = ""
    alias: str = ""
    """Another name that is taken as well."""
    choices: tuple[str, ...] = ()
    """Every possible value, for completion; `check` or the validation of the field rejects others."""
    is_path: bool = False
    """The value names a file, a directory or a socket."""
    deprecated: str = ""
    works_with_file: bool = False
    """Still counts when --config is given."""
    option: str = ""
    """Dotted attribute of RunOptions that it sets."""
    convert: Callable[[Any], Any] = lambda value: value
    """Turns the value of the flag into that of the option."""
    check: Check = lambda _value: ()


_KINDS: tuple[tuple[Any, Kind], ...] = (
    (bool, Kind.BOOL),
    (int, Kind.INT32),
    (Int32, Kind.INT32),
    (UInt32, Kind.UINT32),
    (float, Kind.FLOAT32),
    (Quantity, Kind.QUANTITY),
    (timedelta, Kind.DURATION),
    (DurationOrNanoseconds, Kind.DURATION),
    (tuple[str, ...], Kind.LIST),
    (tuple[VModuleItem, ...], Kind.VMODULE),
    (dict[str, bool], Kind.SWITCHES),
)
"""The type of the flag that sets an attribute of this type; others have strings."""
_CONFIG = with_file_defaults(KubeProxyConfiguration())
_OPTIONS = RunOptions(program="", config=_CONFIG)


def config_flag(name: str, *fields: str, **more: Any) -> Flag:
    """Return the flag that sets these fields of the configuration; the first gives it its type and its default."""
    attribute, default = _find_attribute(_CONFIG, fields[0])
    return Flag(
        **{"kind": _find_kind(attribute), "default": _format_default(default), **more},
        name=name,
        fields=fields,
    )


def option_flag(name: str, option: str, **more: Any) -> Flag:
    """Return the flag that sets an attribute of RunOptions, which gives it its type and its default."""
    attribute, default = _find_attribute(_OPTIONS, option)
    given = {"kind": _find_kind(attribute), "default": _format_default(default), **more}
    if attribute in (Path, Path | None):
        given |= {"is_path": True, "convert": lambda text: Path(text) if text else default}
    return Flag(**given, name=name, option=option)


def _find_attribute(block: msgspec.Struct, path: str) -> tuple[Any, Any]:
    """Return the type and the value of an attribute, by its dotted path."""
    *blocks, name = path.split(".")
    for part in blocks:
        block = getattr(block, part)
    return next(f.type for f in msgspec.structs.fields(block) if f.name == name), getattr(block, name)


def _find_kind(attribute: Any) -> Kind:
    return next((kind for known, kind in _KINDS if known == attribute), Kind.STRING)


def _format_default(value: Any) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if isinstance(value, int | str | Path) else ""


def group_flags(title: str, *flags: Flag, works_with_file: bool = False) -> tuple[Flag, ...]:
    """Return the flags as one group of a table."""
    return tuple(
        msgspec.structs.replace(flag, group=title, works_with_file=works_with_file or flag.works_with_file)
        for flag in flags
    )


class Given(msgspec.Struct, frozen=True):
    """The flags found on a command line: decoded values, and the text for showing them again."""

    values: dict[str, Any] = {}
    texts: dict[str, str] = {}


def parse_flags(argv: Sequence[str], table: Iterable[Flag], *, program: str) -> Given:
    """Return all flags of `argv`; ConfigError lists everything that is wrong with it."""
    return _Parser(table, program).parse(argv)


class _Parser:
    """The state of one pass over a command line."""

    def __init__(self, table: Iterable[Flag], program: str) -> None:
        flags = tuple(table)
        self._flags = {name: flag for flag in flags for name in (flag.name, flag.alias) if name}
        self._shorthands = {flag.shorthand: flag for flag in flags if flag.shorthand}
        self._program = program
        self._problems: list[str] = []
        self._given = Given()

    def parse(self, argv: Sequence[str]) -> Given:
        pending = list(reversed(argv))
        positional: list[str] = []
        while pending:
            argument = pending.pop()
            if argument == "--":
                positional += reversed(pending)
                break
            if argument.startswith("--"):
                self._take_long(argument, pending)
            elif argument.startswith("-") and len(argument) > 1:
                self._take_short(argument, pending)
            else:
                positional.append(argument)
        if positional:
            got = " ".join(positional)
            self._problems.append(f"{self._program} takes no arguments besides flags, got: {got}")
        if self._problems:
            raise ConfigError(self._problems)
        return self._given

    def _take_long(self, argument: str, pending: list[str]) -> None:
        name, equals, text = argument[2:].partition("=")
        flag = self._flags.get(name.replace("_", "-"))
        if flag is None:
            close = did_you_mean(name, self._flags, prefix="--")
            self._report_unknown(f"unknown flag: --{name}{close}", equals, pending)
        elif equals:
            self._set(flag, f"--{flag.name}", text)
        else:
            self._set_from_next(flag, f"--{flag.name}", pending)

    def _take_short(self, argument: str, pending: list[str]) -> None:
        letters = argument[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            flag = self._shorthands.get(letter)
            if flag is None:
                name = argument[1:].partition("=")[0].replace("_", "-")
                close = did_you_mean(name, self._flags, prefix="--")
                self._report_unknown(
                    f"unknown shorthand flag: {letter!r} in {argument}{close}", "=" in argument, pending
                )
                return
            if letters.startswith("="):
                self._set(flag, f"-{letter}", letters[1:])
                return
            if flag.kind in (Kind.BOOL, Kind.VERSION):
                self._set(flag, f"-{letter}", "true")
            elif letters:
                self._set(flag, f"-{letter}", letters)
                return
            else:
                self._set_from_next(flag, f"-{letter}", pending)

    def _report_unknown(self, problem: str, has_value: object, pending: list[str]) -> None:
        self._problems.append(problem)
        if not has_value and pending and not pending[-1].startswith("-"):
            pending.pop()

    def _set_from_next(self, flag: Flag, written: str, pending: list[str]) -> None:
        if flag.kind in (Kind.BOOL, Kind.VERSION):
            self._set(flag, written, "true")
        elif pending:
            self._set(flag, written, pending.pop())
        else:
            self._problems.append(f"flag needs an argument: {written}")

    def _set(self, flag: Flag, written: str, text: str) -> None:
        try:
            value = _DECODERS[flag.kind](text)
        except ValueError as wrong:
            shown = text if len(text) <= 200 else text[:200] + "…"
            self._problems.append(f'invalid argument "{shown}" for "{written}" flag: {wrong}')
            return
        values, texts, name = self._given.values, self._given.texts, flag.name
        if name in values and flag.kind in (Kind.LIST, Kind.VMODULE):
            value = values[name] + value
            text = f"{texts[name]},{text}"
        elif name in values and flag.kind is Kind.SWITCHES:
            value = values[name] | value
            text = f"{texts[name]},{text}"
        values[name] = value
        texts[name] = text


def _parse_bool(text: str) -> bool:
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    raise ValueError("must be true or false")


def _parse_integer(low: int, high: int) -> Callable[[str], int]:
    def decode(text: str) -> int:
        found = _INTEGER.fullmatch(text)
        if found is None or len(text) > 64:
            raise ValueError("must be an integer")
        digits = found[2].replace("_", "")
        if len(digits) > 1 and digits[0] == "0" and digits[1].isdigit():
            digits = f"0o{digits}"
        number = int(digits, 0) * (-1 if found[1] == "-" else 1)
        if not low <= number <= high:
            raise ValueError(f"must be within the range [{low}, {high}]")
        return number

    return decode


def _parse_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError("must be a number") from None
    if not math.isfinite(number) or abs(number) > 3.4e38:
        raise ValueError("must be a finite number")
    return number


def _parse_list(text: str) -> tuple[str, ...]:
    if not text:
        return ()
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error as wrong:
        raise ValueError(f"must be a list separated by commas: {wrong}") from None
    return tuple(rows[0]) if rows else ()


def _parse_switches(text: str) -> dict[str, bool]:
    switches = {}
    for part in text.split(","):
        if not part.strip():
            continue
        name, equals, state = part.partition("=")
        if not equals:
            raise ValueError(f"malformed pair {part!r}, expect name=true or name=false")
        switches[name.strip()] = _parse_bool(state.strip())
    return switches


def _parse_ip(text: str) -> str:
    if text and address_from_text(text) is None:
        raise ValueError("must be an IP address")
    return text


def _parse_ip_port(text: str) -> str:
    if not text or address_from_text(text) is not None:
        return text
    parts = split_host_port(text)
    if parts is None:
        raise ValueError("must be an IP address or IP:port, with brackets around IPv6")
    if address_from_text(parts[0]) is None:
        raise ValueError(f"{parts[0]!r} is not an IP address")
    if port_from_text(parts[1]) is None:
        raise ValueError(f"{parts[1]!r} is not a port")
    return text


def _parse_vmodule(text: str) -> tuple[VModuleItem, ...]:
    items = []
    for part in text.split(","):
        if not part:
            continue
        pattern, equals, level = part.partition("=")
        if not equals or not pattern:
            raise ValueError(f"{part!r} must have the form pattern=N")
        items.append(VModuleItem(file_pattern=pattern, verbosity=_parse_integer(0, (1 << 31) - 1)(level)))
    return tuple(items)


def _parse_version(text: str) -> str:
    if text == "raw" or _VERSION.fullmatch(text):
        return text
    try:
        return "true" if _parse_bool(text) else ""
    except ValueError:
        raise ValueError(f"must be true, raw or a version such as {KUBERNETES_VERSION}.0") from None


_DECODERS: Mapping[Kind, Callable[[str], Any]] = {
    Kind.STRING: str,
    Kind.BOOL: _parse_bool,
    Kind.INT32: _parse_integer(-(1 << 31), (1 << 31) - 1),
    Kind.UINT32: _parse_integer(0, (1 << 31) - 1),
    Kind.FLOAT32: _parse_float,
    Kind.DURATION: duration_from_text,
    Kind.LIST: _parse_list,
    Kind.SWITCHES: _parse_switches,
    Kind.IP: _parse_ip,
    Kind.IP_PORT: _parse_ip_port,
    Kind.QUANTITY: bytes_from_quantity,
    Kind.VMODULE: _parse_vmodule,
    Kind.VERSION: _parse_version,
}
