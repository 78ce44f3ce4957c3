"""Legends that fit a figure of any width: fewer columns, then wrapped labels, then smaller letters."""

import textwrap
from dataclasses import dataclass, field

import numpy as np

_SIZES_PT = (7, 6.5, 6, 5.5, 5)
_TALLEST = 7  # entries of a block in one column
_MOST_COLUMNS = 5  # of blocks
_FEWEST_LETTERS = 8  # of a line of a wrapped label


def _filled(items, columns):
    """The items as a legend fills its columns: one after the other, the first ones with one more where they differ."""
    short, longer = divmod(len(items), columns)
    ends = np.cumsum([0] + [short + (i < longer) for i in range(columns)])
    return [items[a:b] for a, b in zip(ends, ends[1:])]


@dataclass
class Plain:
    """Entries in a row. `columns`: the most of them; None: all that fit."""

    handles: list
    labels: list
    columns: int = None

    def forms(self):
        """(handles, labels, columns), the widest first."""
        most = min(len(self.labels), self.columns or len(self.labels))
        found = {-(-len(self.labels) // rows) for rows in range(1, len(self.labels) + 1)}
        for columns in sorted((c for c in found if c <= most), reverse=True):
            yield list(self.handles), list(self.labels), columns


def _split(block, most):
    """A block in pieces of about equal heights, none above `most`."""
    pieces = -(-len(block) // most)
    height = -(-len(block) // pieces)
    return [block[i : i + height] for i in range(0, len(block), height)]


def block_columns(blocks, least=0):
    """(columns, height): blocks one under the other where they have room; those above `_TALLEST` entries first, in columns next to each other.
    `least`: of the height."""
    most = max(_TALLEST, least)
    tall = [piece for block in blocks if len(block) > most for piece in _split(block, most)]
    rest = sorted((block for block in blocks if len(block) <= most), key=len, reverse=True)
    height = max([len(block) for block in tall + rest] + [-(-sum(map(len, blocks)) // _MOST_COLUMNS), least])
    columns = [list(piece) for piece in tall]
    for block in rest:
        room = next((c for c in columns if len(c) + len(block) <= height), None)
        if room is None:
            columns.append(room := [])
        room.extend(block)
    return columns, height


@dataclass
class Blocks:
    """Groups of entries, [(handle, label)] each, that stay together. `blank`: a handle of nothing."""

    groups: list
    blank: object = field(default=None)

    def compact(self):
        """The entries without the headings of their groups, which end in a colon."""
        entries = [(handle, label) for group in self.groups for handle, label in group if not label.endswith(":")]
        return Plain([h for h, _ in entries], [t for _, t in entries])

    def forms(self):
        """(handles, labels, columns), the widest first."""
        widths = set()
        for least in range(sum(map(len, self.groups)) + 1):
            columns, height = block_columns(self.groups, least)
            if len(columns) in widths:
                continue
            widths.add(len(columns))
            entries = [entry for c in columns for entry in c + [(self.blank, "")] * (height - len(c))]
            yield [h for h, _ in entries], [t for _, t in entries], len(columns)


def _wrapped(labels, letters):
    return ["\n".join(textwrap.wrap(label, letters)) if len(label) > letters else label for label in labels]


class _Placing:
    """One legend of one figure. `wanted_in`: of the height, or None."""

    def __init__(self, figure, legend, rename, wanted_in):
        self.figure, self.legend, self.rename, self.wanted_in = figure, legend, rename, wanted_in
        self.renderer = figure.canvas.get_renderer()

    def _drawn(self, handles, labels, columns, size):
        """The legend, or None where it is wider than the figure."""
        found = self.figure.legend(handles, labels, loc="upper center", ncol=columns, borderaxespad=0.1, fontsize=size)
        if found.get_window_extent(self.renderer).width <= 0.99 * self.figure.bbox.width:
            return found
        found.remove()
        return None

    def height_in(self, drawn):
        return drawn.get_window_extent(self.renderer).height / self.figure.dpi

    def _of_size(self, legend, size):
        """The widest form that fits with letters of this size; None: none does."""
        for handles, labels, columns in legend.forms():
            labels = [self.rename(label) for label in labels]
            if (found := self._drawn(handles, labels, columns, size)) is not None:
                return found
        for letters in range(max(map(len, labels)) - 1, _FEWEST_LETTERS, -2):  # one column, whose labels have several lines
            if (found := self._drawn(handles, _wrapped(labels, letters), 1, size)) is not None:
                return found
        return None

    def place(self):
        """The first form that is low enough, with headings and large letters first; else the lowest of them."""
        best, forms = None, [self.legend, *([self.legend.compact()] if isinstance(self.legend, Blocks) else [])]
        for size, legend in ((size, legend) for size in _SIZES_PT for legend in forms):
            found = self._of_size(legend, size)
            if found is None:
                continue
            if best is not None:
                higher = best if self.height_in(best) > self.height_in(found) else found
                higher.remove()
                best = found if higher is best else best
            else:
                best = found
            if self.wanted_in is None or self.height_in(best) <= self.wanted_in:
                break
        return best


def place(figure, legend, rename, wanted_in=None):
    """Draws the legend, no wider than the figure; with smaller letters where it is taller than `wanted_in`. None: it has no entries, or no room."""
    return _Placing(figure, legend, rename, wanted_in).place() if len(legend.labels if isinstance(legend, Plain) else legend.groups) else None
