"""Graphs drawn with characters: edges in braille dots, 2 x 4 to a character, with the nodes' labels over them.

On a terminal that is not UTF-8, a character with any dot becomes a full stop.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: The bit of each dot in a braille character, by row and column.
_BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))


def graph_lines(
    points: Sequence[tuple[float, float]],
    edges: Iterable[tuple[int, int]],
    labels: Sequence[str],
    *,
    columns: int,
    rows: int,
    ascii_only: bool = False,
) -> list[str]:
    """Draw a graph as lines of text.

    Args:
        points: the position of each node, x and y from 0 to 1.
        edges: pairs of node numbers.
        labels: one per node.
        columns: width of the drawing in characters.
        rows: height of the drawing in lines.
        ascii_only: whether the terminal cannot show braille.
    """
    dots = [[0] * columns for _ in range(rows)]
    margin = max(map(len, labels)) / columns  # so that a label at the edge is not cut off
    scaled = [((margin + x * (1 - 2 * margin)) * (2 * columns - 1), y * (4 * rows - 1)) for x, y in points]
    for a, b in edges:
        for x, y in _line(scaled[a], scaled[b]):
            dots[y // 4][x // 2] |= _BITS[y % 4][x % 2]
    cells = [[_character(bits, ascii_only) for bits in row] for row in dots]
    for place, label in zip(scaled, labels, strict=True):
        row, first = int(place[1]) // 4, int(place[0]) // 2 - (len(label) - 1) // 2
        cells[row][first : first + len(label)] = label
    return ["".join(row).rstrip() for row in cells]


def _character(bits: int, ascii_only: bool) -> str:
    if not bits:
        return " "
    return "." if ascii_only else chr(0x2800 + bits)


def _line(start: tuple[float, float], end: tuple[float, float]) -> Iterable[tuple[int, int]]:
    steps = max(1, round(max(abs(end[0] - start[0]), abs(end[1] - start[1]))))
    for step in range(steps + 1):
        part = step / steps
        yield round(start[0] + part * (end[0] - start[0])), round(start[1] + part * (end[1] - start[1]))
