"""Text laid out for a terminal: its width, its colours, its characters. Pure: values in, text out.

A command's text is a sequence of lines and tables. A line that starts with a mark (`✓`, `✗`, `!`) is coloured by it;
a line that is too long continues below its own beginning; a table that is too wide wraps at the spaces in its
cells, and where a word is too long becomes a list of records. Without a width nothing is wrapped: programs read lines.
"""

from __future__ import annotations

import enum
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest

import msgspec

from pointsman.text import escape

BAR_WIDTH = 28
_BLOCKS = " ▏▎▍▌▋▊▉█"
_GAP = 2
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
_HANGING_MARKS = (*_MARKS, "-> ", "+ ", "- ")
_ASCII = str.maketrans(
    {**dict(zip("│─┴┬┼┌┐├┤└┘", "|-+++++++++", strict=True)), "✓": "ok", "✗": "x", "…": "..."}
)


class Screen(msgspec.Struct, frozen=True):
    """What the reader's screen can show."""

    colour: bool = True
    unicode: bool = True
    width: int = 0
    """Columns; 0: unlimited."""

    def paint(self, text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour and text else text

    def apply_tone(self, text: str, tone: Tone) -> str:
        return self.paint(text, tone.value)

    def bold(self, text: str) -> str:
        return self.apply_tone(text, Tone.BOLD)

    def dim(self, text: str) -> str:
        return self.apply_tone(text, Tone.DIM)

    def good(self, text: str) -> str:
        return self.apply_tone(text, Tone.GOOD)

    def bad(self, text: str) -> str:
        return self.apply_tone(text, Tone.BAD)

    def to_plain(self, text: str) -> str:
        """Return the text in characters that the screen can show."""
        return text if self.unicode else to_ascii(text)


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
    min_widths: Sequence[int] = ()
    """For rows that continue an earlier table."""


def to_ascii(text: str) -> str:
    """The marks and frames of our own output in ASCII; anything else as it is."""
    return text.translate(_ASCII)


def lay_out(content: Iterable[str | Table], screen: Screen = PLAIN) -> str:
    """Lines and tables as text for the screen, ending with a newline; what came from outside cannot act on it."""
    lines: list[str] = []
    for part in content:
        lines += _render_table(part, screen) if isinstance(part, Table) else _wrap_line(escape(part), screen)
    return "".join(f"{line}\n" for line in lines)


def draw_bar(share: float, screen: Screen, width: int = BAR_WIDTH) -> str:
    """A horizontal bar for a share between 0 and 1, always `width` characters."""
    if not screen.unicode:
        return ("#" * round(share * width)).ljust(width)
    eighths = round(share * width * 8)
    full, rest = divmod(eighths, 8)
    return (_BLOCKS[8] * full + (_BLOCKS[rest] if rest else "")).ljust(width)


def _wrap_line(line: str, screen: Screen) -> Iterator[str]:
    body = line.lstrip()
    indent = len(line) - len(body)
    tone = _MARKS.get(body[:2])
    lead = next((len(mark) for mark in _HANGING_MARKS if body.startswith(mark)), 2)
    pieces = [line]
    if screen.width and len(line) > screen.width:
        pieces = _split_line(line, max(screen.width, _NARROWEST), min(indent + lead, screen.width // 3))
    if tone is None:
        yield from pieces
    elif tone is Tone.GOOD:
        yield f"{line[:indent]}{screen.good(body[0])}{pieces[0][indent + 1 :]}"
        yield from pieces[1:]
    else:
        yield from (_paint_after_indent(piece, tone, screen) for piece in pieces)


def _split_line(line: str, width: int, hanging: int) -> list[str]:
    return textwrap.wrap(
        line,
        width,
        subsequent_indent=" " * hanging,
        replace_whitespace=False,
        break_on_hyphens=False,
    )


def _paint_after_indent(piece: str, tone: Tone, screen: Screen) -> str:
    body = piece.lstrip()
    return piece[: len(piece) - len(body)] + screen.apply_tone(body, tone)


def measure_columns(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return how wide each column has to be."""
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def fit_rows(
    rows: Sequence[Sequence[str]],
    screen: Screen,
    *,
    numbers: Container[int] = (),
    optional: Iterable[int] = (),
) -> list[str]:
    """Return one line per row, without colours. Columns that are empty below the heading and, where there is no room,
    optional ones are left out; the first column is cut where that is not enough.
    """
    kept = choose_columns(rows, optional, screen.width, keep_empty=len(rows) == 1)
    rows = [[escape(row[at]) for at in kept] for row in rows]
    widths = measure_columns(rows)
    excess = _sum_widths(widths) - screen.width if screen.width else 0
    widths[0] = max(2, widths[0] - max(0, excess))
    lines = []
    for row in rows:
        first = row[0] if len(row[0]) <= widths[0] else f"{row[0][: widths[0] - 1]}…"
        cells = [
            cell.rjust(width) if column in numbers else cell.ljust(width)
            for column, cell, width in zip(kept, (first, *row[1:]), widths, strict=True)
        ]
        lines.append(screen.to_plain((" " * _GAP).join(cells).rstrip()))
    return lines


def choose_columns(
    rows: Sequence[Sequence[str]], optional: Iterable[int], width: int, *, keep_empty: bool = False
) -> list[int]:
    """Return the columns to show: without those that are empty below the heading and, while there is no room, without
    the optional ones in their order.
    """
    kept = [at for at, column in enumerate(zip(*rows, strict=True)) if keep_empty or any(column[1:])]
    widths = measure_columns(rows)
    for column in optional:
        if not width or _sum_widths([widths[one] for one in kept]) <= width:
            break
        if column in kept:
            kept.remove(column)
    return kept


def _sum_widths(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _render_table(table: Table, screen: Screen) -> Iterator[str]:
    if not table.rows:
        return
    table = msgspec.structs.replace(table, rows=[[escape(cell) for cell in row] for row in table.rows])
    widths = measure_columns(table.rows)
    if table.min_widths:
        widths = list(map(max, widths, table.min_widths))
    if screen.width and not _shrink(widths, table.rows, screen.width):
        yield from _render_records(table, screen)
        return
    for number, row in enumerate(table.rows):
        tones = [Tone.BOLD if table.heading and number == 0 else table.tones.get(cell) for cell in row]
        cells = [_wrap_cell(cell, width) for cell, width in zip(row, widths, strict=True)]
        for line in range(max(map(len, cells), default=0)):
            shown = []
            for column, lines in enumerate(cells):
                text = lines[line] if line < len(lines) else ""
                padding = " " * (widths[column] - len(text))
                tone = tones[column]
                painted = screen.apply_tone(text, tone) if tone else text
                shown.append(padding + painted if column in table.numbers else painted + padding)
            yield (" " * _GAP).join(shown).rstrip()


def _shrink(widths: list[int], rows: Sequence[Sequence[str]], width: int) -> bool:
    """Narrow the widest columns until the rows fit; return whether they do so without a word being cut."""
    longest = [
        max(max(map(len, cell.split()), default=0) for cell in column) for column in zip(*rows, strict=True)
    ]
    while _sum_widths(widths) > width:
        able = [column for column, wide in enumerate(widths) if wide > max(1, longest[column])]
        if not able:
            return False
        widths[max(able, key=widths.__getitem__)] -= 1
    return True


def _render_records(table: Table, screen: Screen) -> Iterator[str]:
    """A table that no arrangement of columns fits: one line per cell, and each row after an empty line."""
    heading, rows = (table.rows[0], table.rows[1:]) if table.heading else ([], table.rows)
    names = max(map(len, heading), default=0)
    for row in rows:
        yield ""
        for name, cell in zip_longest(heading, row, fillvalue=""):
            lead = f"{name:{names}}  " if names else ""
            first, *more = _split_line(lead + cell, max(screen.width, _NARROWEST), len(lead))
            tone = table.tones.get(cell)
            yield screen.bold(lead) + (
                screen.apply_tone(first[len(lead) :], tone) if tone else first[len(lead) :]
            )
            yield from more


def _wrap_cell(cell: str, width: int) -> list[str]:
    return [cell] if len(cell) <= width else textwrap.wrap(cell, width, break_on_hyphens=False)
