"""Places title, legend, panels and note on a figure of a given size, so that nothing leaves the page and nothing covers anything else."""

import textwrap
import warnings

import legends

TITLE_PT, NOTE_PT = 7, 6
_LABEL_PT = (8, 7.5, 7, 6.5, 6, 5.5, 5, 4.5)
_LEAST_ONE_IN, _LEAST_ROW_IN = 0.9, 0.45  # height between the axes of a panel, in one row and in several
_LEGEND_SHARE = 0.3  # of a height that the user has set: a legend above it has smaller letters
_MOST_LINES = 2  # of the label of an axis
remarks = {}  # {name of a figure: text} of those that are not as the user has set them


def wrapped(figure, text, size):
    """Lines as wide as the figure, and their height in inches; none where there is no text."""
    if not text:
        return "", 0.0
    probe, renderer = figure.text(0, 0, text, fontsize=size), figure.canvas.get_renderer()
    letters = max(12, int(len(text) * figure.bbox.width / probe.get_window_extent(renderer).width))
    while True:  # lines of wide letters take more than the mean
        lines = textwrap.wrap(text, letters, break_long_words=letters <= 20)
        probe.set_text("\n".join(lines))
        if letters <= 12 or probe.get_window_extent(renderer).width <= 0.97 * figure.bbox.width:
            break
        letters -= 1
    probe.remove()
    return "\n".join(lines), len(lines) * 1.25 * size / 72 + 0.03


def balanced(text, lines):
    """The text in this many lines of about equal length, or fewer."""
    for letters in range(-(-len(text) // lines), len(text) + 1):
        found = textwrap.wrap(text, letters, break_long_words=False, break_on_hyphens=False)
        if len(found) <= lines:
            return "\n".join(found)
    return text


def _fit_label(label, room, is_upright, renderer):
    """Breaks a label into two lines at most, and takes smaller letters, until it is no longer than `room` pixels; more lines where that is not
    enough. Returns True if the label changed."""
    text = label.get_text()

    def fits():
        box = label.get_window_extent(renderer)
        return (box.height if is_upright else box.width) <= room

    if not text or (text.count("\n") < _MOST_LINES and fits()):
        return False
    plain, begin = " ".join(text.split("\n")), label.get_fontsize()
    short = [text] if text.count("\n") < _MOST_LINES else []
    short += [balanced(plain, lines) for lines in range(1, _MOST_LINES + 1)]
    sizes = [size for size in _LABEL_PT if size <= begin] or [begin]
    for size, form in [*((size, form) for size in sizes for form in short), *((sizes[-1], balanced(plain, lines)) for lines in range(3, 7))]:
        label.set(text=form, fontsize=size)
        if fits():
            break
    return True


class _Page:
    """The figure with what is above and below its panels, in inches."""

    def __init__(self, figure, top_in, note_in):
        self.figure, self.top_in, self.note_in = figure, top_in, note_in
        self.renderer = figure.canvas.get_renderer()

    @property
    def panels(self):
        return [a for a in self.figure.axes if a.get_visible()]

    def _grid(self, axes):
        spec = axes.get_subplotspec()
        return (spec.get_gridspec().nrows, spec.get_gridspec().ncols) if spec is not None else (1, 1)

    def _rooms(self, axes, share):
        """Pixels that the x label and title, and the y label of a panel may take. `share`: of its cell of the grid, while it is not placed yet."""
        width, height = self.figure.bbox.width, self.figure.bbox.height
        low, high = self.note_in * self.figure.dpi, height - self.top_in * self.figure.dpi
        (rows, columns), box = self._grid(axes), axes.bbox
        if share is not None:
            return width / columns * (share if columns > 1 else 0.98), (high - low) / rows * (share if rows > 1 else 0.95)
        x, y = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
        edge = 1.96 * min(x, width - x)
        return edge if columns == 1 else min(1.08 * box.width, edge), 1.9 * min(y - low, high - y) if rows == 1 else 1.12 * box.height

    def fit_labels(self, share=None):
        """Returns True if a label changed."""
        changed = False
        for axes in self.panels:
            x_room, y_room = self._rooms(axes, share)
            for label, room, is_upright in ((axes.xaxis.label, x_room, False), (axes.title, x_room, False), (axes.yaxis.label, y_room, True)):
                changed |= _fit_label(label, room, is_upright, self.renderer)
        return changed

    def tighten(self):
        height = self.figure.get_figheight()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # too little room is seen in `lacks`
            self.figure.tight_layout(pad=0.3, h_pad=0.6, rect=(0, self.note_in / height, 1, 1 - self.top_in / height))

    def lacks_in(self, least_in):
        """The height that panels lack to be `least_in` high, all rows together."""
        rows = max((self._grid(a)[0] for a in self.panels), default=0)
        height = self.figure.get_figheight()
        boxes = [a.get_tightbbox(self.renderer) for a in self.panels]
        over = [(b.y1 - self.figure.bbox.height + self.top_in * self.figure.dpi, self.note_in * self.figure.dpi - b.y0) for b in boxes if b is not None]
        beyond = max((max(pair) for pair in over), default=0) / self.figure.dpi
        short = max((least_in - a.get_position().height * height for a in self.panels), default=0)
        return rows * max(short, 0) + (beyond if beyond > 0.05 else 0)


def _thin_ticks(figure):
    """Hides every label of an x axis that would cover the one before it."""
    renderer = figure.canvas.get_renderer()
    for axes in (a for a in figure.axes if a.get_visible()):
        end = None
        ticks = [t for t in axes.xaxis.get_major_ticks() if t.label1.get_visible() and t.label1.get_text() and t.label1.get_rotation() == 0]
        for tick in sorted(ticks, key=lambda t: t.label1.get_window_extent(renderer).x0):
            box = tick.label1.get_window_extent(renderer)
            if end is not None and box.x0 < end + 1:
                tick.label1.set_visible(False)
            else:
                end = box.x1


def _settle(page, is_set, least_in):
    """Places the panels. The height grows until each has `least_in`; without a set height, panels are as high as they are meant to be."""
    page.fit_labels(share=0.85)
    for _ in range(4):
        page.tighten()
        if page.fit_labels() or is_set:
            page.tighten()  # ticks and labels change with the panels' size
        lacks = page.lacks_in(least_in) if is_set else 0
        if lacks <= 0.02:
            break
        page.figure.set_figheight(page.figure.get_figheight() + lacks)


def lay_out(figure, name, own, legend, title, note, rename=str, least_in=None):
    """Title and legend above the panels, the note below them; nothing over the data. The height grows by them unless the user has set it, and
    then too where panels would have less than `least_in` of height: `remarks` says so."""
    title, title_in = wrapped(figure, title, TITLE_PT)
    note, note_in = wrapped(figure, note, NOTE_PT)
    is_set = "size" in own
    least_in = least_in or (_LEAST_ROW_IN if max((a.get_subplotspec().get_gridspec().nrows for a in figure.axes if a.get_subplotspec()), default=1) > 1 else _LEAST_ONE_IN)
    drawn = legends.place(figure, legend, rename, _LEGEND_SHARE * figure.get_figheight() if is_set else None) if legend is not None else None
    top_in = title_in + (drawn.get_window_extent(figure.canvas.get_renderer()).height / figure.dpi if drawn else 0)
    if not is_set:
        figure.set_figheight(figure.get_figheight() + top_in + note_in)
    page, asked = _Page(figure, top_in, note_in), figure.get_figheight()
    if is_set and asked < top_in + note_in + least_in:
        figure.set_figheight(top_in + note_in + least_in + 0.3)
    _settle(page, is_set, least_in)
    height = figure.get_figheight()
    if is_set and height > asked + 0.02:
        remarks[name] = f"{height:.2f} in high, not {asked:g}: legend, note and labels leave too little of {asked:g} in to the panels"
    if drawn is not None:
        drawn.set_bbox_to_anchor((0, 0, 1, 1 - title_in / height), figure.transFigure)
    if title:
        figure.text(0.5, 1 - 0.03 / height, title, ha="center", va="top", fontsize=TITLE_PT)
    if note:
        figure.text(0.01, 0.03 / height, note, ha="left", va="bottom", fontsize=NOTE_PT, color="#404040")
    _thin_ticks(figure)
