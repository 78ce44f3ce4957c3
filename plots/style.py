"""Look of every figure: one column wide, 8 pt, readable in grey, fonts embedded."""

import contextlib
import functools
import os
from pathlib import Path

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend has to be chosen first)
from matplotlib import font_manager  # noqa: E402
from matplotlib.ticker import AutoLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator  # noqa: E402

import layout  # noqa: E402
import legends  # noqa: E402
import names  # noqa: E402
import pgf  # noqa: E402
import settings  # noqa: E402
import whole_file  # noqa: E402
import written  # noqa: E402

COLUMN_IN = 3.4
PAGE_IN = 7.0  # a figure across both columns
PAGE_HEIGHT_IN = 9.0
MAX_LINES = 12
_SLO = "slo"  # mark of what `slo_lines: false` takes away

# Twelve distinct looks. Colours run from dark to light so that they stay apart in grey; where two are close, dash and marker differ.
_COLOURS = ("#1b1b3a", "#8c1d40", "#1f5fa8", "#b8500c", "#2f8f6b", "#8f6fc0", "#d08a00", "#5aa9d6", "#7a7a7a", "#d97a9e", "#8fbf4d", "#b39a7a")
_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)), (0, (8, 2)), (0, (3, 1, 1, 1, 1, 1)))
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")

_SETTINGS = {
    "font.size": 8, "axes.titlesize": 8, "axes.labelsize": 8, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7,
    "font.family": "sans-serif", "font.sans-serif": ["Liberation Sans", "Arimo", "Helvetica", "Arial", "DejaVu Sans"], "mathtext.fontset": "dejavusans",
    "pdf.fonttype": 42, "ps.fonttype": 42, "savefig.dpi": 300, "figure.dpi": 100,
    "axes.linewidth": 0.6, "lines.linewidth": 1.2, "lines.markersize": 3.5, "axes.spines.top": False, "axes.spines.right": False,
    "xtick.major.width": 0.6, "ytick.major.width": 0.6, "xtick.minor.width": 0.4, "ytick.minor.width": 0.4,
    "axes.grid": True, "grid.linewidth": 0.3, "grid.color": "#d0d0d0", "axes.axisbelow": True,
    "legend.frameon": False, "legend.handlelength": 2.6, "legend.columnspacing": 1.2, "legend.handletextpad": 0.5, "legend.labelspacing": 0.3,
    "svg.hashsalt": "kvlab", "axes.unicode_minus": True,
}


_FONTS = Path("/usr/share/fonts/truetype/liberation")  # of Debian's fonts-liberation: the widths of Helvetica


def _find_fonts():
    """Makes fonts known that were installed after matplotlib listed the machine's."""
    if not any(font.name == "Liberation Sans" for font in font_manager.fontManager.ttflist):
        for path in sorted(_FONTS.glob("LiberationSans-*.ttf")):
            font_manager.fontManager.addfont(str(path))


def apply():
    _find_fonts()
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


def grid(name, rows, columns, width_in, height_in, **options):
    """Figure and axes[rows, columns] of the figure `name`, in the user's size where one is set; `save` adds what title, legend and note need."""
    width_in, height_in = settings.of(name).get("size", (width_in, height_in))
    return plt.subplots(rows, columns, figsize=(width_in, height_in), squeeze=False, **options)


def panels(name, rows, panel_height_in, **options):
    """A column of panels; the height grows with the rows."""
    figure, axes = grid(name, rows, 1, COLUMN_IN, rows * panel_height_in, **options)
    return figure, list(axes[:, 0])


def facets(name, count, height_in):
    """Figure and axes of `count` panels that share their ranges: one, or two in a row."""
    columns = min(2, count)
    rows = -(-count // columns)
    figure, axes = grid(name, rows, columns, COLUMN_IN, height_in if count == 1 else 1.05 * rows + 0.3, sharex=True, sharey=True)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])


def panel_title(axis, text):
    if text:
        axis.set_title(text, fontsize=layout.TITLE_PT, pad=3)


def outer_labels(axes, x, y):
    """Labels of panels that share their ranges, at the left and below alone."""
    columns = axes[0].get_gridspec().ncols
    rows = -(-len(axes) // columns)
    for i, axis in enumerate(axes):
        is_last = i + columns >= len(axes)
        if i % columns == 0 and (rows < 3 or i // columns == rows // 2):  # of three rows or more in the middle
            axis.set_ylabel(y)
        if is_last:
            axis.set_xlabel(x)
            axis.tick_params(axis="x", labelbottom=True)


def width_of(name, width_in):
    return settings.of(name).get("size", (width_in, 0))[0]


def in_seconds(most_ms):
    """True where values up to this many milliseconds read better in seconds: from ten seconds on."""
    return most_ms >= 10_000


def limit(axis, which, value, text):
    """A dashed line at a limit of the SLO where the axis reaches that far, "x" or "y"."""
    low, high = axis.get_xlim() if which == "x" else axis.get_ylim()
    if not low < value < high:
        return
    look = {"color": "#606060", "linestyle": (0, (3, 2)), "linewidth": 0.7, "zorder": 1.5, "gid": _SLO}
    if which == "x":
        axis.axvline(value, **look)
        axis.annotate(text, (value, 1), (0, 1), xycoords=("data", "axes fraction"), textcoords="offset points", fontsize=5.5, color="#606060", ha="center", va="bottom", gid=_SLO)
    else:
        axis.axhline(value, **look)
        axis.annotate(text, (1, value), (2, 0), xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=5.5, color="#606060", va="center", gid=_SLO)


def along(axis, at, text):
    """Words on the line x = y, beside its point at `at`."""
    axis.annotate(text, (at, at), (-3, 2), textcoords="offset points", fontsize=5.5, color="#606060", ha="right", va="bottom")


def short_number(value, _=None):
    for size, letter in ((1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:g}"


def three_digits(value):
    """Three digits, so that numbers compare: 1.40 with 1.42. Whole numbers have no decimals."""
    return f"{value:,.0f}" if value >= 99.95 or value == round(value) else f"{value:#.3g}"


def logarithmic(axes, which, low, high, dense_below=500):
    """Makes the "x" or "y" axis logarithmic, with ticks at 1, 2, 5 where the values span less than this factor."""
    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < dense_below * low else (1,)))
    axis.set_major_formatter(FuncFormatter(short_number))
    axis.set_minor_locator(LogLocator(subs=range(2, 10)))
    axis.set_minor_formatter(NullFormatter())


def _linear(axes, which):
    (axes.set_xscale if which == "x" else axes.set_yscale)("linear")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(AutoLocator())
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(short_number))


def _set_axes(figure, own):
    """Labels, scales and ranges that the user has set, in every panel that has such a label."""
    for axes in (a for a in figure.axes if a.get_visible()):
        for which in ("x", "y"):
            label = getattr(axes, f"get_{which}label")()
            if label and f"{which}_label" in own:
                getattr(axes, f"set_{which}label")(own[f"{which}_label"])
            if own.get(f"{which}_scale") == "log":
                logarithmic(axes, which, *getattr(axes.dataLim, f"interval{which}"))
            elif own.get(f"{which}_scale") == "linear":
                _linear(axes, which)
            if f"{which}_range" in own:
                getattr(axes, f"set_{which}lim")(*own[f"{which}_range"])
    for artist in figure.findobj(lambda a: a.get_gid() == _SLO) if not own.get("slo_lines", True) else ():
        artist.remove()


def _write_one(figure, path, form):
    """No dates inside: the same results give the same bytes."""
    with whole_file.replacing(path) as fresh:
        if form == "pgf":
            fresh.write_text(pgf.text_of(figure, f"{path.stem}.pdf"))
        else:
            figure.savefig(fresh, format=form, metadata={"CreationDate": None, "ModDate": None} if form == "pdf" else {"Software": None})


def _begin(write, *arguments):
    """The number of a process that writes, for _end()."""
    process = os.fork()
    if process == 0:
        status = 1
        try:
            with open(os.devnull, "w") as nothing, contextlib.redirect_stderr(nothing):
                write(*arguments)
            status = 0
        finally:
            os._exit(status)
    return process


def _end(process, write, *arguments):
    """Writes here what the process could not, for the error."""
    if os.waitpid(process, 0)[1] != 0:
        write(*arguments)


def _write(figure, folder, name, formats):
    """Another process writes the first format at the same time as this one the others."""
    folder.mkdir(parents=True, exist_ok=True)
    if "pgf" in formats and pgf.has_image(figure):
        formats = dict.fromkeys(("pdf", *formats))
    first, *others = [(written.note(folder / f"{name}.{form}"), form) for form in formats]
    process = _begin(_write_one, figure, *first) if others and hasattr(os, "fork") else None
    try:
        for path, form in others if process else [first, *others]:
            _write_one(figure, path, form)
    finally:
        if process:
            _end(process, _write_one, figure, *first)


def save(figure, folder, name, handles=(), labels=(), columns=None, title="", note="", place=None, least_in=None):
    """Writes NAME.pdf and NAME.png, or what the settings say, and closes the figure. `handles`: of the legend, or legends.Blocks. `place` is called
    when panels have their final places, for labels inside them. `least_in`: the height that each panel needs. Returns the name; None: the
    settings leave the figure out, or the user has defined another of this name."""
    own = settings.of(name)
    if name in settings.taken or not own.get("draw", True):
        plt.close(figure)
        return None
    _set_axes(figure, own)
    legend = handles if isinstance(handles, legends.Blocks) else legends.Plain(list(handles), list(labels), columns)
    rename = functools.partial(names.own_name, figure=name)
    layout.lay_out(figure, name, own, legend if own.get("legend", True) else None, own.get("title", title), note, rename, least_in)
    if place is not None:
        place()
    _write(figure, Path(folder), name, own.get("format", ("pdf", "png")))
    plt.close(figure)
    return name
