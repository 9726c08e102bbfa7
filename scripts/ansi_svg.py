"""Turns coloured terminal output into an SVG picture.

script -qec "pointsman demo" /dev/null | python scripts/ansi_svg.py > docs/demo.svg
"""

from __future__ import annotations

import html
import re
import sys

_SEQUENCE = re.compile(r"\x1b\[([\d;]*)m")
_COLOURS = {
    31: "#ff6b6b",
    32: "#69db7c",
    33: "#ffd43b",
    34: "#74a9ff",
    35: "#da8fff",
    36: "#4dd4e6",
    37: "#e6e6e6",
}
_FOREGROUND, _BACKGROUND = "#d8dee9", "#14171f"
_CHARACTER, _LINE, _MARGIN = 7.8, 17, 16


def render_svg(text: str) -> str:
    """One `text` element per line, one `tspan` per stretch of equal style; columns keep their places."""
    lines = text.replace("\r", "").rstrip("\n").split("\n")
    columns = max(len(_SEQUENCE.sub("", line)) for line in lines)
    width, height = columns * _CHARACTER + 2 * _MARGIN, len(lines) * _LINE + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}">',
        f'<rect width="100%" height="100%" rx="8" fill="{_BACKGROUND}"/>',
        f'<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="13" fill="{_FOREGROUND}">',
    ]
    for number, line in enumerate(lines):
        y = _MARGIN + (number + 0.8) * _LINE
        parts.append(f'<text xml:space="preserve" y="{y:.1f}">{_render_spans(line)}</text>')
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _render_spans(line: str) -> str:
    spans, column, style = [], 0, ""
    for position, piece in enumerate(_SEQUENCE.split(line)):
        if position % 2:
            style = _render_style(piece)
        elif piece:
            x = _MARGIN + column * _CHARACTER
            length = f' textLength="{len(piece) * _CHARACTER:.1f}"'
            spans.append(f'<tspan x="{x:.1f}"{length}{style}>{html.escape(piece)}</tspan>')
            column += len(piece)
    return "".join(spans)


def _render_style(codes: str) -> str:
    made = ""
    for code in map(int, filter(None, codes.split(";"))):
        if code == 1:
            made += ' font-weight="bold" fill="#ffffff"'
        elif code == 2:
            made += ' opacity="0.6"'
        elif code in _COLOURS:
            made += f' fill="{_COLOURS[code]}"'
    return made


if __name__ == "__main__":
    sys.stdout.write(render_svg(sys.stdin.read()))
