"""KV policies on recorded attention: fidelity over bytes and over tokens read, per head, per step, and of the needles (docs/replay.md)."""

import numpy as np
from matplotlib.colors import to_hex, to_rgb
from matplotlib.lines import Line2D

import settings
import style
from families import FAMILIES, MARKERS
from groups import only_labels, policy_names, spread_evenly
from heat_maps import maps, needles, one_recipe, source_of
from legends import Blocks
from load import ResultsError
from names import shown

SUMMARY_COLUMNS = ("recipe budget_tokens attention_mass output_rel_err topk_recall needle_kept attended_tokens resident_bytes_frac "
            "host_bytes_frac disk_bytes_frac family").split()
_GREY = {"color": "#b4b4b4", "linestyle": "none", "markersize": 2.4, "markeredgewidth": 0, "zorder": 1.2}
_MAX_GREY = 40  # policies that a note names
_NEAR_ONE = 0.85  # masses from which a linear axis tells policies apart
FRONT = {"color": "black", "linewidth": 2.4, "alpha": 0.2}


def points_of(results):
    """A row per policy and budget, means over seeds, in the order of families and then of the experiment. `swept`: the experiment gives
    its budget; `selects`: it keeps all tokens and reads some."""
    rows = results.summary
    rows = rows.assign(name=policy_names(rows, results.axes), rank=rows["family"].map(list(FAMILIES).index))
    numbers = [c for c in SUMMARY_COLUMNS if c not in ("recipe", "family")] + ["rank"]
    grouped = rows.groupby(["name", *results.axes], sort=False, dropna=False)
    points = grouped.agg({"run": list, "family": "first", "budget": "first", **dict.fromkeys(numbers, "mean")}).reset_index("name").reset_index(drop=True)
    points = points.sort_values("rank", kind="stable", ignore_index=True)
    points["swept"] = points["budget"] != ""
    points["selects"] = (points["attention_mass"] < 1) & ((points["family"] == "selection") | (points["resident_bytes_frac"] > 0.995))
    return points


def pareto(x, y):
    """Indices of the points that no other beats with x not larger and y not smaller, by ascending x."""
    front = []
    for i in sorted(range(len(x)), key=lambda i: (x[i], -y[i], i)):
        if not front or y[i] > y[front[-1]]:
            front.append(i)
    return front


# ---- curves ----


def is_elsewhere(rows):
    """Which rows hold bytes in host memory or on disk."""
    return rows["host_bytes_frac"] + rows["disk_bytes_frac"] > 0


def _shade(colour, place, count):
    """The colour darker or lighter: one of `count` shades; of a dark colour, whose darker shades look alike, lighter ones alone."""
    rgb = np.array(to_rgb(colour))
    darkest, lightest = (0.0, 0.6) if rgb @ (0.2126, 0.7152, 0.0722) < 0.3 else (-0.3, 0.4)
    step = 0.0 if count == 1 else darkest + (lightest - darkest) * place / (count - 1)
    return to_hex(rgb * (1 + step) if step < 0 else rgb + (1 - rgb) * step)


def looks_of(points):
    """For each policy: marker and colour by family, shade by place in the family."""
    looks = {}
    for family, rows in points.groupby("family", sort=False):
        names = rows["name"].unique()
        for i, name in enumerate(names):
            looks[name] = {"color": _shade(FAMILIES[family], i, len(names) if family != "reference" else 2 * len(names)), "marker": MARKERS[family]}
    return looks


def choose(points, fronts, figure, every=False):
    """(policies with a colour and a place in the legend, the others): up to twelve, those on the fronts, references, then of each family in turn."""
    names, most = only_labels(points["name"].unique(), figure), settings.of(figure).get("max_lines", style.MAX_LINES)
    if every or len(names) <= most or isinstance(settings.of(figure).get("only"), list):
        return names, []
    family = dict(zip(points["name"], points["family"]))
    references = [n for n in names if family[n] == "reference"][:2]
    best = [n for n in dict.fromkeys(n for front in fronts for n in front) if n in names and n not in references]
    chosen = references + spread_evenly(best, most - len(references))
    rest = {f: [n for n in names if n not in chosen and family[n] == f] for f in FAMILIES}
    while len(chosen) < most and any(rest.values()):
        chosen += [rest[f].pop(0) for f in FAMILIES if rest[f]][: most - len(chosen)]
    return [n for n in names if n in chosen], [n for n in names if n not in chosen]


def left_out_note(others, figure):
    if not others:
        return ""
    named = ", ".join(shown(n, figure) for n in others[:_MAX_GREY])
    return f"In grey: {named}{f' and {len(others) - _MAX_GREY} more' if len(others) > _MAX_GREY else ''} (--all draws them)."


def draw_others(axis, points, others, x, y):
    """The points of the policies without a colour: their families' markers."""
    for family, rows in points[points["name"].isin(others)].groupby("family", sort=False):
        axis.plot(rows[x], rows[y], marker=MARKERS[family], **_GREY)


def legend_of(points, looks, figure, more=()):
    """Families side by side, each under its name, as the legend of style.save(). `more`: entries of another block."""
    blocks = [list(more)] if more else []
    for family, rows in points.groupby("family", sort=False):
        names = rows["name"].unique()
        head = Line2D([], [], linestyle="none", marker=MARKERS[family], markersize=4, markerfacecolor="none", markeredgewidth=0.8, color=FAMILIES[family])
        blocks.append([(head, f"{family}:")] + [(Line2D([], [], linestyle="none", markersize=4, markeredgewidth=0, **looks[n]), shown(n, figure)) for n in names])
        if family == "selection" and is_elsewhere(rows).any():
            hollow = {"color": FAMILIES[family], "marker": MARKERS[family], "markerfacecolor": "white", "linestyle": "--", "linewidth": 0.7, "markersize": 4}
            blocks[-1].append((Line2D([], [], **hollow), "hollow: rest in CPU memory"))
    return (Blocks(blocks, Line2D([], [], linestyle="none")),)


def mass_scale(axis, low, high=1):
    """Stretches masses near 1, where most policies are, as a logarithmic axis of what is lost would; linear where all of them are near 1. The axis
    ends above `high`. Returns the name of the scale."""
    if low >= _NEAR_ONE:
        room = 0.08 * max(high - low, 0.01)
        axis.set_ylim(low - room, min(high + room, 1 + room))
        return "linear"

    def to_axis(m):
        return -np.log10(np.maximum(1.004 - np.asarray(m, dtype=float), 1e-9))

    axis.set_yscale("function", functions=(to_axis, lambda v: 1.004 - 10.0 ** -np.asarray(v, dtype=float)))
    ticks = [t for t in (0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1) if t >= low]
    axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axis.set_ylim(max(0, low - 0.05), 1.0024 if high > 0.98 else high + 0.4 * (1 - high))
    return "log"


def _draw_curves(axis, points, x, y, looks):
    for name, rows in points[points["name"].isin(looks)].groupby("name", sort=False):
        rows = rows.sort_values(x, kind="stable")
        look = looks[name]
        hollow = is_elsewhere(rows).any()
        axis.plot(rows[x], rows[y], linewidth=0.7, alpha=0.75, markersize=3.2, markeredgewidth=0.7,
                  markerfacecolor="white" if hollow else look["color"], linestyle="--" if hollow else "-", **look)


def _place_label(axis, text, x, y, up, taken):
    """Offset in points of a label beside (x, y), further off until it covers no point and no other; it stays inside the panel."""
    scale = 72 / axis.figure.dpi
    px, py = axis.transData.transform((x, y)) * scale
    left = axis.bbox.x0 * scale + 2
    width, height = 3.5 * len(text), 8
    begin = max(left, px - 5 - width)
    low, high = axis.bbox.y0 * scale, axis.bbox.y1 * scale
    is_free = lambda y: not any(begin < b + w and b < begin + width and abs(y - m) < (height + h) / 2 for b, w, m, h in taken)
    tried = [(way, off) for way in (up, -up) for off in np.arange(8.0, 61.0) if low + 4 < py + way * off < high - 4]
    up, off = next(((way, off) for way, off in tried if is_free(py + way * off)), tried[-1] if tried else (up, 60.0))
    taken.append((begin, width, py + up * off, height))
    return begin - px, up * off


def _spread(axis, line, x, y):
    """One row per recipe, far from the others' where a recipe has several points on the front."""
    place = dict(zip(line.index, axis.transData.transform(line[[x, y]].to_numpy(dtype=float))))
    chosen = []
    for _, rows in sorted(line.groupby("name", sort=False), key=lambda part: len(part[1])):
        chosen.append(max(rows.index, key=lambda i: min((np.hypot(*(place[i] - place[c])) for c in chosen), default=0)))
    return line.loc[sorted(chosen, key=list(line.index).index)]


def front_of(rows, x, y, sign):
    """Labels of the rows on the Pareto front: x small, y large (sign 1) or small (-1)."""
    return [rows.index[i] for i in pareto(rows[x].to_numpy(), sign * rows[y].to_numpy())]


def draw_front(axis, line, x, y):
    axis.plot(line[x], line[y], drawstyle="steps-post", zorder=1.5, solid_capstyle="round", **FRONT)


def label_front(axis, points, line, x, y, up, figure):
    """Each recipe's name at one of its points on the front, when the panel has its final place."""
    taken = [(px - 2, 4, py, 4) for px, py in axis.transData.transform(points[[x, y]].to_numpy(dtype=float)) * 72 / axis.figure.dpi]
    for row in _spread(axis, line, x, y).to_dict("records"):
        text = shown(row["name"], figure)
        offset = _place_label(axis, text, row[x], row[y], up, taken)
        axis.annotate(text, (row[x], row[y]), offset, textcoords="offset points", ha="left", va="center", fontsize=6, color=FAMILIES[row["family"]],
                      bbox={"boxstyle": "square,pad=0.05", "facecolor": "white", "alpha": 0.7, "linewidth": 0},
                      arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "#707070", "shrinkA": 0, "shrinkB": 1.5})


def _fidelity_axes(left, right, points, lossy, x, title):
    for axis in (left, right):
        style.logarithmic(axis, "x", points[x].min(), points[x].max())
        axis.set_xlim(points[x].min() * 0.5, points[x].max() * 1.15)
        axis.set_xlabel(title)
    scale = mass_scale(left, points["attention_mass"].min(), points["attention_mass"].max())
    left.set_ylabel("Attention mass kept\n(share, on a log scale of what is lost)" if scale == "log" else "Attention mass kept (share)")
    if len(lossy):
        style.logarithmic(right, "y", lossy["output_rel_err"].min(), lossy["output_rel_err"].max())
        right.set_ylim(bottom=lossy["output_rel_err"].min() * 0.45)
    right.set_ylabel("Relative output error (ratio)")


def _fidelity_over(points, x, title, note, folder, name, every):
    """Attention mass and output error over x, a curve per recipe. The front leaves out references, and over bytes what has some elsewhere."""
    points = points[points["name"].isin(only_labels(points["name"].unique(), name))]
    figure, axes = style.grid(name, 1, 2, style.PAGE_IN, 2.9)
    lossy = points[points["output_rel_err"] > 0]
    panels = []
    for axis, rows, y, sign in ((axes[0, 0], points, "attention_mass", 1), (axes[0, 1], lossy, "output_rel_err", -1)):
        plain = rows[(rows["family"] != "reference") & ((x != "resident_bytes_frac") | ~is_elsewhere(rows))]
        panels.append((axis, rows, y, sign, rows.loc[front_of(plain, x, y, sign)]))
    chosen, others = choose(points, [line["name"] for *_, line in panels], name, every)
    coloured = points[points["name"].isin(chosen)]
    looks = looks_of(coloured)
    for axis, rows, y, _, line in panels:
        draw_others(axis, rows, others, x, y)
        _draw_curves(axis, rows, x, y, looks)
        draw_front(axis, line, x, y)
    _fidelity_axes(*axes[0], points, lossy, x, title)
    more = [(Line2D([], [], **FRONT), "Pareto front")]

    def place():
        for axis, rows, y, sign, line in panels:
            line = line[line["name"].isin(chosen)]
            if len(line):
                label_front(axis, rows, line, x, y, sign, name)

    note = " ".join(filter(None, (note, left_out_note(others, name))))
    return style.save(figure, folder, name, *legend_of(coloured, looks, name, more), note=note, place=place)


def _over_bytes(points, source, folder, every):
    smaller = points[(points["resident_bytes_frac"] < 0.995) | ~points["selects"]]  # the others would be on one line
    notes = ["selectors that keep all bytes are in fidelity_attended"] if len(smaller) < len(points) else []
    some = smaller[smaller["resident_bytes_frac"] > 0]  # the axis is logarithmic
    if len(some) < len(smaller):
        notes.append(f"without what keeps no bytes on the GPU: {', '.join(smaller.drop(some.index)['name'].unique())}")
    if some.empty:
        return None, ""
    exact = (some["family"] == "format") & (some["attention_mass"] >= 1)
    formats = "Formats keep every token, so their mass is 1: the right panel has their error." if exact.any() else ""
    note = " ".join(filter(None, (formats, source)))
    return _fidelity_over(some, "resident_bytes_frac", "KV bytes on the GPU (share of the full cache)", note, folder, "fidelity_bytes", every), "; ".join(notes)


def draw(results, folder, every=False, recipe=None):
    """Yields (name, note) of the figures written."""
    results.need("summary", SUMMARY_COLUMNS, "the fidelity figures")
    if results.summary.empty:
        return
    points, source = points_of(results), source_of(results)
    has_prompts = results.prompts is not None and not results.prompts.empty
    is_exact = (points["attention_mass"] >= 1).all() and (points["output_rel_err"] <= 0).all()
    if not (has_prompts and is_exact):  # prefill selectors leave decode as it is, and prompts have a figure of their own
        yield _over_bytes(points, source, folder, every)
    reading = points[(points["attention_mass"] < 1) & (points["attended_tokens"] > 0)]
    if not reading.empty:
        yield _fidelity_over(reading, "attended_tokens", "Tokens attended to (per step, layer and KV head)", source, folder, "fidelity_attended", every), ""
    yield from maps(results, points, folder, every)
    yield needles(points, source, folder), ""
    if recipe is None and points["name"].nunique() == 1:
        recipe = points["name"].iloc[0]
    if recipe is not None and results.heads is not None:
        chosen = points[points["name"] == recipe]
        if chosen.empty:
            raise ResultsError(f"{results.folder}: has no recipe '{recipe}'; it has: {', '.join(points['name'].unique())}")
        yield one_recipe(results, chosen, folder), ""
