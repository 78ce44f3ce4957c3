"""A figure as pgfplots source for \\input into a paper: the same panels, lines, marks, bars, labels and legend, with the data as coordinates.

Needs \\usepackage{pgfplots} with \\pgfplotsset{compat=1.16}. A heat map, which pgfplots cannot draw, is included as the PDF beside it.
"""

import numpy as np
from matplotlib import colors
from matplotlib.collections import LineCollection, PathCollection
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.text import Annotation

_SPECIAL = {c: "\\" + c for c in "&%$#_{}"} | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "−": "$-$", "ρ": r"$\rho$",
                                               "³": r"\textsuperscript{3}", "–": "--", "\n": r"\\"}
_MARKS = {"o": "*", "s": "square*", "^": "triangle*", "D": "diamond*", "v": "triangle*, mark options={rotate=180}", "P": "+", "X": "x",
          "<": "triangle*, mark options={rotate=90}", ">": "triangle*, mark options={rotate=270}", "p": "pentagon*", "h": "10-pointed star", "*": "star", "|": "|", "_": "-",
          "d": "diamond*", "H": "otimes*", "8": "oplus*"}
_HOLLOW = {"*": "o", "square*": "square", "triangle*": "triangle", "diamond*": "diamond", "pentagon*": "pentagon", "otimes*": "otimes", "oplus*": "oplus"}


def escape(text):
    return "".join(_SPECIAL.get(c, c) for c in str(text))


class _Colours:
    """Colours by name, in the order of their first use."""

    def __init__(self):
        self.names = {}

    def __call__(self, colour):
        return self.names.setdefault(colors.to_hex(colour)[1:].upper(), f"kvlab{len(self.names)}")

    def lines(self):
        return [rf"\definecolor{{{name}}}{{HTML}}{{{value}}}" for value, name in self.names.items()]


def _numbers(points):
    return " ".join(f"({x:.6g},{y:.6g})" for x, y in points)


def _is_plain(scale):
    return scale in ("linear", "log")


def _to_data(axes, artist_transform, points):
    """Points of any transform in data coordinates; on a scale that pgfplots does not have, as shares of the axis."""
    shown = artist_transform.transform(points)
    data, share = axes.transData.inverted().transform(shown), axes.transAxes.inverted().transform(shown)
    return np.column_stack([(data if _is_plain(scale) else share)[:, i] for i, scale in enumerate((axes.get_xscale(), axes.get_yscale()))])


def _dashes(line):
    pattern = getattr(line, "_dash_pattern", (0, None))[1] or ()
    return "dash pattern=" + " ".join(f"{'on' if i % 2 == 0 else 'off'} {length:.2f}pt" for i, length in enumerate(pattern)) if pattern else "solid"


def _mark(line):
    mark = _MARKS.get(line.get_marker())
    if not mark:
        return "mark=none"
    if colors.to_rgba(line.get_markerfacecolor())[3] == 0 or line.get_markerfacecolor() in ("white", "none"):
        mark = mark.replace(mark.split(",")[0], _HOLLOW.get(mark.split(",")[0], mark.split(",")[0]))
    every = line.get_markevery()
    repeat = f", mark repeat={every[1]}, mark phase={every[0] + 1}" if isinstance(every, tuple) else ""
    return f"mark={mark}, mark size={line.get_markersize() / 2:.2f}pt{repeat}"


def _look(line, colour):
    only = str(line.get_linestyle()) in ("None", "none", "", " ")
    options = [f"color={colour(line.get_color())}", "only marks" if only else f"line width={line.get_linewidth():.2f}pt, {_dashes(line)}", _mark(line)]
    if line.get_alpha() is not None:
        options.append(f"opacity={line.get_alpha():g}")
    if line.get_drawstyle() == "steps-post":
        options.append("const plot mark left")
    return ", ".join(options)


def _lines(axes, colour):
    for line in axes.lines:
        points = _to_data(axes, line.get_transform(), np.asarray(line.get_xydata(), dtype=float))
        points = points[np.isfinite(points).all(axis=1)]
        if line.get_visible() and len(points):
            yield rf"\addplot[{_look(line, colour)}] coordinates {{{_numbers(points)}}};"


def _collections(axes, colour):
    for one in axes.collections:
        if isinstance(one, LineCollection):
            for segment in one.get_segments():
                low, high = np.sort(np.column_stack([axes.get_xlim(), axes.get_ylim()]), axis=0)
                ends = _to_data(axes, axes.transData, np.clip(np.asarray(segment, dtype=float), low, high))
                if np.isfinite(ends).all():
                    yield rf"\draw[color={colour(one.get_colors()[0])}, line width={one.get_linewidths()[0]:.2f}pt] " + " -- ".join(f"(axis cs:{x:.6g},{y:.6g})" for x, y in ends) + ";"
        elif isinstance(one, PathCollection):
            sizes = np.resize(one.get_sizes(), len(one.get_offsets()))
            for point, size in zip(_to_data(axes, axes.transData, np.asarray(one.get_offsets(), dtype=float)), sizes):
                yield rf"\addplot[only marks, color={colour(one.get_facecolors()[0])}, mark=square*, mark size={np.sqrt(size) / 2:.2f}pt] coordinates {{{_numbers([point])}}};"


def _bars(axes, colour):
    low = [axes.get_xlim()[0], axes.get_ylim()[0]]
    for bar in (p for p in axes.patches if isinstance(p, Rectangle)):
        corners = np.array([[bar.get_x(), bar.get_y()], [bar.get_x() + bar.get_width(), bar.get_y() + bar.get_height()]], dtype=float)
        if not np.isfinite(corners).all():
            continue
        if axes.get_xscale() == "log":
            corners[:, 0] = np.maximum(corners[:, 0], low[0])
        (x0, y0), (x1, y1) = corners
        yield rf"\draw[fill={colour(bar.get_facecolor())}, draw={colour(bar.get_edgecolor())}, line width={bar.get_linewidth():.2f}pt] (axis cs:{x0:.6g},{y0:.6g}) rectangle (axis cs:{x1:.6g},{y1:.6g});"


def _share(axes, shown):
    return "(rel axis cs:{:.4f},{:.4f})".format(*axes.transAxes.inverted().transform(shown))


def _texts(axes, colour, renderer):
    for text in (t for t in axes.texts if t.get_text() and t.get_visible() and t.get_alpha() != 0):
        box = text.get_window_extent(renderer)
        middle = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
        if isinstance(text, Annotation):
            box = type(text).__mro__[1].get_window_extent(text, renderer)  # of the text, without its arrow
            middle = ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
            if text.arrow_patch is not None:
                yield rf"\draw[color={colour('#707070')}, line width=0.4pt] {_share(axes, middle)} -- {_share(axes, axes.transData.transform(text.xy))};"
        size = text.get_fontsize()
        yield (rf"\node[inner sep=0.5pt, align=center, text={colour(text.get_color())}, font=\fontsize{{{size:g}}}{{{1.2 * size:g}}}\selectfont] "
               rf"at {_share(axes, middle)} {{{escape(text.get_text())}}};")


def _ticks(axes, which):
    axis = getattr(axes, f"{which}axis")
    low, high = sorted(getattr(axes, f"get_{which}lim")())
    scale = getattr(axes, f"get_{which}scale")()
    marks = [(t.get_position()["xy".index(which)], t.get_text()) for t in axis.get_ticklabels() if t.get_visible()]
    marks = [(at, text) for at, text in marks if low <= at <= high]
    if not _is_plain(scale):
        to_share = axes.transAxes.inverted().transform(axes.transData.transform([((at, low) if which == "x" else (axes.get_xlim()[0], at)) for at, _ in marks])) if marks else []
        marks = [(share["xy".index(which)], text) for share, (_, text) in zip(to_share, marks)]
    at, texts = ",".join(f"{a:.6g}" for a, _ in marks), ",".join(f"{{{escape(text)}}}" for _, text in marks)
    return [f"{which}tick={{{at}}}", f"{which}ticklabels={{{texts}}}"]


def _range(axes, which):
    if not _is_plain(getattr(axes, f"get_{which}scale")()):
        return [f"{which}min=0", f"{which}max=1"]
    low, high = getattr(axes, f"get_{which}lim")()
    turned = [f"{which} dir=reverse"] if low > high else []
    mode = [f"{which}mode=log"] if getattr(axes, f"get_{which}scale")() == "log" else []
    return [f"{which}min={min(low, high):.6g}", f"{which}max={max(low, high):.6g}", *turned, *mode]


def _axis_options(figure, axes):
    box, (width, height) = axes.get_position(), figure.get_size_inches()
    options = [f"at={{({box.x0 * width:.3f}in,{box.y0 * height:.3f}in)}}", "anchor=south west", "scale only axis", f"width={box.width * width:.3f}in",
               f"height={box.height * height:.3f}in", "clip mode=individual", "axis lines*=left", "grid=major", "grid style={gray!30, very thin}", "align=center"]
    for which in ("x", "y"):
        options += [*_range(axes, which), *_ticks(axes, which)]
        label = getattr(axes, f"get_{which}label")()
        options += [f"{which}label={{{escape(label)}}}", f"{which}label style={{align=center, font=\\small}}"] if label else []
    if axes.get_title():
        options += [f"title={{{escape(axes.get_title())}}}", r"title style={font=\footnotesize, align=center, yshift=-1ex}"]
    return [*options, r"tick label style={font=\footnotesize}"]


def _legend(figure, axes, colour):
    """Options and entries of the figure's legend, as one of its first panel."""
    if not figure.legends:
        return [], []
    legend, box = figure.legends[0], axes.get_position()
    top = (legend.get_window_extent().y1 / figure.bbox.height - box.y0) / box.height
    options = [f"legend columns={legend._ncols if hasattr(legend, '_ncols') else legend._ncol}", r"legend cell align=left",
               rf"legend style={{at={{({(0.5 - box.x0) / box.width:.3f},{top:.3f})}}, anchor=north, draw=none, fill=none, font=\footnotesize, /tikz/every even column/.append style={{column sep=6pt}}}}"]
    entries = []
    for handle, text in zip(legend.legendHandles, legend.get_texts()):
        look = _look(handle, colour) if isinstance(handle, Line2D) else f"area legend, fill={colour(handle.get_facecolor())}" if isinstance(handle, Rectangle) else f"color={colour('black')}"
        entries += [rf"\addlegendimage{{{look}}}", rf"\addlegendentry{{{escape(text.get_text())}}}"]
    return options, entries


def has_image(figure):
    return any(axes.images for axes in figure.axes)


def text_of(figure, pdf=""):
    """The source. `pdf`: the name of the PDF beside it, for figures with a heat map."""
    if has_image(figure):
        return rf"\includegraphics{{{pdf}}}" + "\n"
    figure.canvas.draw()
    renderer, colour, body = figure.canvas.get_renderer(), _Colours(), []
    for i, axes in enumerate(a for a in figure.axes if a.get_visible()):
        options, entries = _legend(figure, axes, colour) if i == 0 else ([], [])
        body += [r"\begin{axis}[" + ",\n  ".join([*_axis_options(figure, axes), *options]) + "]", *entries]
        body += [*_bars(axes, colour), *_lines(axes, colour), *_collections(axes, colour), *_texts(axes, colour, renderer), r"\end{axis}"]
    width, height = figure.get_size_inches()
    notes = [f"% {line}" for text in figure.texts for line in text.get_text().splitlines()]
    frame = rf"\path[use as bounding box] (0,0) rectangle ({width:.3f}in,{height:.3f}in);"
    return "\n".join(["% needs \\usepackage{pgfplots} and \\pgfplotsset{compat=1.16}", *notes, *colour.lines(), r"\begin{tikzpicture}", frame, *body, r"\end{tikzpicture}", ""])
