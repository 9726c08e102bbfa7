"""Text laid out for a terminal: its width, its colours, its characters. Pure: values in, text out.

A command's text is a sequence of lines and tables. A line that starts with a mark (`✓`, `✗`, `!`) is coloured by it;
a line that is too long continues below its own beginning; a table that is too wide wraps inside its cells, so that
nothing is lost on a narrow screen. Without a width nothing is wrapped: programs read lines.
"""

from __future__ import annotations

import enum
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from pointsman.text import escape

BAR_WIDTH = 28
_BLOCKS = " ▏▎▍▌▋▊▉█"
_AFTER_PUNCTUATION = re.compile(r"(?<=[/:,\s-])")
_NARROWEST = 20
"""Below that, wrapping would leave a word or less per line."""


class Tone(enum.Enum):
    """What a text means to its reader, as a colour."""

    BOLD = 1
    DIM = 2
    BAD = 31
    GOOD = 32
    WARNING = 33


_MARKS = {"✓ ": Tone.GOOD, "✗ ": Tone.BAD, "! ": Tone.WARNING}
_HANGING = (*_MARKS, "-> ", "+ ", "- ")
_ASCII = str.maketrans(
    {**dict(zip("│─┴┬┼┌┐├┤└┘", "|-+++++++++", strict=True)), "✓": "ok", "✗": "x", "…": "..."}
)


class Screen(msgspec.Struct, frozen=True):
    """What the reader's screen can show."""

    colour: bool = True
    unicode: bool = True
    width: int = 0
    """Columns; 0 where a line may be as long as it likes."""

    def paint(self, text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text

    def toned(self, text: str, tone: Tone) -> str:
        return self.paint(text, tone.value)

    def bold(self, text: str) -> str:
        return self.toned(text, Tone.BOLD)

    def dim(self, text: str) -> str:
        return self.toned(text, Tone.DIM)

    def good(self, text: str) -> str:
        return self.toned(text, Tone.GOOD)

    def bad(self, text: str) -> str:
        return self.toned(text, Tone.BAD)

    def plain(self, text: str) -> str:
        """The text in what the screen can write."""
        return text if self.unicode else ascii_look(text)


PLAIN = Screen(colour=False)
"""A file or another program."""


class Table(msgspec.Struct, frozen=True):
    """Rows of cells."""

    rows: Sequence[Sequence[str]]
    tones: Mapping[str, Tone] = {}
    """Cells with exactly this text are coloured."""
    numbers: frozenset[int] = frozenset()
    """Columns that are aligned to the right."""
    heading: bool = True
    """The first row is one."""


def ascii_look(text: str) -> str:
    """The marks and frames of our own output in ASCII; anything else as it is."""
    return text.translate(_ASCII)


def laid_out(content: Iterable[str | Table], screen: Screen = PLAIN) -> str:
    """Lines and tables as text for the screen, ending with a newline; what came from outside cannot act on it."""
    lines: list[str] = []
    for part in content:
        lines += _table_lines(part, screen) if isinstance(part, Table) else _wrapped(escape(part), screen)
    return "".join(f"{line}\n" for line in lines)


def bar(share: float, screen: Screen, width: int = BAR_WIDTH) -> str:
    """A horizontal bar for a share between 0 and 1, always `width` characters."""
    if not screen.unicode:
        return ("#" * round(share * width)).ljust(width)
    eighths = round(share * width * 8)
    full, rest = divmod(eighths, 8)
    return (_BLOCKS[8] * full + (_BLOCKS[rest] if rest else "")).ljust(width)


def _wrapped(line: str, screen: Screen) -> Iterator[str]:
    body = line.lstrip()
    indent = len(line) - len(body)
    tone = _MARKS.get(body[:2])
    lead = next((len(mark) for mark in _HANGING if body.startswith(mark)), 2)
    pieces = [line]
    if screen.width and len(line) > screen.width:
        pieces = _pieces(line, max(screen.width, _NARROWEST), min(indent + lead, screen.width // 3))
    if tone is None:
        yield from pieces
    elif tone is Tone.GOOD:
        yield f"{line[:indent]}{screen.good(body[0])}{pieces[0][indent + 1 :]}"
        yield from pieces[1:]
    else:
        yield from (_toned_after_indent(piece, tone, screen) for piece in pieces)


def _pieces(line: str, width: int, hanging: int) -> list[str]:
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * hanging,
        replace_whitespace=False,
        break_on_hyphens=False,
    )


def _toned_after_indent(piece: str, tone: Tone, screen: Screen) -> str:
    body = piece.lstrip()
    return piece[: len(piece) - len(body)] + screen.toned(body, tone)


def _table_lines(table: Table, screen: Screen) -> Iterator[str]:
    rows = [[escape(cell) for cell in row] for row in table.rows]
    widths, gap = _widths(rows, screen.width)
    for number, row in enumerate(rows):
        tones = [Tone.BOLD if table.heading and number == 0 else table.tones.get(cell) for cell in row]
        cells = [_cell_lines(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in range(max(map(len, cells), default=0)):
            shown = []
            for column, lines in enumerate(cells):
                text = lines[line] if line < len(lines) else ""
                padding = " " * (widths[column] - len(text))
                tone = tones[column]
                painted = screen.toned(text, tone) if tone else text
                shown.append(padding + painted if column in table.numbers else painted + padding)
            yield (" " * gap).join(shown).rstrip()


def _widths(rows: Sequence[Sequence[str]], width: int) -> tuple[list[int], int]:
    """How wide each column is, and the gap between two; as wide as their cells where that fits."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    gap = 2
    if not width or sum(widths) + gap * (len(columns) - 1) <= width:
        return widths, gap
    longest = [max(max(map(len, cell.split()), default=0) for cell in column) for column in columns]
    parts = [max(max(map(len, _parts(cell)), default=0) for cell in column) for column in columns]
    for least, gap in ((longest, 2), (longest, 1), (parts, 1), ([1] * len(columns), 1)):
        room = width - gap * (len(columns) - 1)
        _shrink(widths, least, room)
        if sum(widths) <= room:
            break
    return widths, gap


def _shrink(widths: list[int], least: Sequence[int], room: int) -> None:
    """Take from the widest column, one at a time, until they fit or none can give more."""
    while sum(widths) > room:
        able = [column for column, width in enumerate(widths) if width > max(1, least[column])]
        if not able:
            return
        widths[max(able, key=widths.__getitem__)] -= 1


def _cell_lines(cell: str, width: int) -> list[str]:
    """Wrapped at spaces, else after punctuation, else anywhere."""
    if len(cell) <= width:
        return [cell]
    if all(len(word) <= width for word in cell.split()):
        return textwrap.wrap(cell, width, break_on_hyphens=False)
    lines = [""]
    for part in _parts(cell):
        if len(lines[-1]) + len(part.rstrip()) > width and lines[-1]:
            lines.append("")
        while len(part) > width:
            lines[-1:] = [part[:width], ""]
            part = part[width:]
        lines[-1] += part
    return [line.rstrip() for line in lines if line.strip()]


def _parts(cell: str) -> list[str]:
    return [part for part in _AFTER_PUNCTUATION.split(cell) if part]
