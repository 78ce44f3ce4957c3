"""Look of every figure: one column wide, 8 pt, readable in grey, fonts embedded."""

import textwrap
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend has to be chosen first)
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: E402

import written  # noqa: E402

COLUMN_IN = 3.4
PAGE_IN = 7.0  # a figure across both columns
PAGE_HEIGHT_IN = 9.0
MAX_LINES = 12
_TITLE_PT, _NOTE_PT = 7, 6

# Twelve distinct looks. Colours run from dark to light so that they stay apart in grey; where two are close, dash and marker differ.
_COLOURS = ("#1b1b3a", "#8c1d40", "#1f5fa8", "#b8500c", "#2f8f6b", "#8f6fc0", "#d08a00", "#5aa9d6", "#7a7a7a", "#d97a9e", "#8fbf4d", "#b39a7a")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")

_SETTINGS = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7,
    "font.family": "sans-serif", "font.sans-serif": ["Arial", "Helvetica", "Liberation Sans", "DejaVu Sans"], "mathtext.fontset": "dejavusans",
    "pdf.fonttype": 42, "ps.fonttype": 42, "savefig.dpi": 300, "figure.dpi": 100,
    "axes.linewidth": 0.6, "lines.linewidth": 1.2, "lines.markersize": 3.5, "axes.spines.top": False, "axes.spines.right": False,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.minor.width": 0.4, "ytick.minor.width": 0.4,
    "axes.grid": True, "grid.linewidth": 0.3, "grid.color": "#d0d0d0", "axes.axisbelow": True,
    "legend.frameon": False, "legend.handlelength": 2.6, "legend.columnspacing": 1.2, "legend.handletextpad": 0.5, "legend.labelspacing": 0.3,
    "svg.hashsalt": "kvlab", "axes.unicode_minus": True,
}


def apply():
    plt.rcParams.update(_SETTINGS)


def line(index, markers=True):
    """Keyword arguments of the index-th line of a figure."""
    look = {"color": _COLOURS[index % MAX_LINES], "linestyle": _DASHES[index % len(_DASHES)]}
    if markers:
        look.update(marker=_MARKERS[index % MAX_LINES], markeredgewidth=0)
    return look


def point(index):
    """Keyword arguments of the index-th kind of points without a line: markers of the second dozen are hollow."""
    look = {**line(index), "linestyle": "none"}
    return look if index < MAX_LINES else {**look, "markerfacecolor": "none", "markeredgewidth": 0.8}


def few_markers(index, count, num_points):
    """Markers on a curve of many points: about eight, staggered so that those of different lines do not cover each other."""
    every = max(1, num_points // 8)
    return {**line(index), "markevery": (index * every // max(1, count) % every, every)}


def panels(rows, panel_height_in, **options):
    """A column of panels; the height grows with the rows, and `save` adds what the legend needs."""
    figure, axes = plt.subplots(rows, 1, figsize=(COLUMN_IN, rows * panel_height_in), squeeze=False, **options)
    return figure, list(axes[:, 0])


def _legend_columns(figure, labels):
    renderer = figure.canvas.get_renderer()
    text = figure.text(0, 0, "", fontsize=_SETTINGS["legend.fontsize"])
    widths = []
    for label in labels:
        text.set_text(label)
        widths.append(text.get_window_extent(renderer).width / figure.dpi)
    text.remove()
    entry_in = max(widths) + 0.5  # line sample, gap and column space
    columns = max(1, min(len(labels), int(figure.get_figwidth() / entry_in)))
    rows = -(-len(labels) // columns)
    return -(-len(labels) // rows)  # as few columns as these rows need, so that none is nearly empty


def in_seconds(most_ms):
    """True where values up to this many milliseconds read better in seconds: from ten seconds on."""
    return most_ms >= 10_000


def limit(axis, which, value, text):
    """A dashed line at a limit of the SLO where the axis reaches that far, "x" or "y"."""
    low, high = axis.get_xlim() if which == "x" else axis.get_ylim()
    if not low < value < high:
        return
    look = {"color": "#606060", "linestyle": (0, (3, 2)), "linewidth": 0.7, "zorder": 1.5}
    if which == "x":
        axis.axvline(value, **look)
        axis.annotate(text, (value, 1), (0, 1), xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=5.5, color="#606060", ha="center", va="bottom")
    else:
        axis.axhline(value, **look)
        axis.annotate(text, (0, value), (2, 1.5), xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=5.5, color="#606060", va="bottom")


def _short_number(value, _):
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def logarithmic(axes, which, low, high, dense_below=500):
    """Makes the "x" or "y" axis logarithmic, with ticks at 1, 2, 5 where the values span less than this factor."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < dense_below * low else (1,)))
    axis.set_major_formatter(FuncFormatter(_short_number))
    axis.set_minor_locator(LogLocator(subs=range(2, 10)))
    axis.set_minor_formatter(NullFormatter())


def _wrapped(figure, text, size):
    """Lines as wide as the figure, and their height in inches; none where there is no text."""
    if not text:
        return "", 0.0
    letters = max(20, int(figure.get_figwidth() * 72 / (0.55 * size)))
    lines = textwrap.wrap(text, letters, break_long_words=False)
    return "\n".join(lines), len(lines) * 1.25 * size / 72 + 0.03


def save(figure, folder, name, handles=(), labels=(), columns=None, title="", note=""):
    """Writes NAME.pdf and NAME.png: the title, then the legend, above the panels; the note below them; nothing over the data. Returns the name."""
    title, title_in = _wrapped(figure, title, _TITLE_PT)
    note, note_in = _wrapped(figure, note, _NOTE_PT)
    legend, top_in = None, title_in
    if len(labels) > 0:
        columns = columns or _legend_columns(figure, labels)
        legend = figure.legend(handles, labels, loc="upper center", ncol=columns, borderaxespad=0.1)
        top_in += legend.get_window_extent(figure.canvas.get_renderer()).height / figure.dpi
    figure.set_figheight(figure.get_figheight() + top_in + note_in)
    height = figure.get_figheight()
    if legend is not None:
        legend.set_bbox_to_anchor((0, 0, 1, 1 - title_in / height), figure.transFigure)
    if title:
        figure.text(0.5, 1 - 0.03 / height, title, ha="center", va="top", fontsize=_TITLE_PT)
    if note:
        figure.text(0.01, 0.03 / height, note, ha="left", va="bottom", fontsize=_NOTE_PT, color="#404040")
    figure.tight_layout(pad=0.3, h_pad=0.6, rect=(0, note_in / height, 1, 1 - top_in / height))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    # No dates inside: the same results give the same bytes.
    figure.savefig(written.note(folder / f"{name}.pdf"), metadata={"CreationDate": None, "ModDate": None})
    figure.savefig(written.note(folder / f"{name}.png"), metadata={"Software": None})
    plt.close(figure)
    return name
