"""KV policies on recorded attention: fidelity over bytes and over tokens read, per head, per step, and of the needles (docs/replay.md)."""

import numpy as np
import pandas as pd
from matplotlib.colors import BoundaryNorm, to_hex, to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import setting
import settings
import style
from groups import at_budgets, budgets_of, only_labels, policy_names, sentence, spread_evenly
from load import ResultsError, slug
from names import shown
from policies import full_name

# Colours of the families, in the order of legends and tables; in grey and to the colour-blind the markers tell them apart.
FAMILIES = {"position": "#882255", "attention": "#332288", "keys and values": "#997700", "expected attention": "#117733", "merging": "#aa4499",
            "eviction and format": "#cc6677", "format": "#b8500c", "selection": "#3388bb", "reference": "#303030"}
MARKERS = dict(zip(FAMILIES, ("v", "o", "^", "D", "P", "p", "s", "X", "*")))
_SUMMARY = ("recipe budget_tokens attention_mass output_rel_err topk_recall needle_kept attended_tokens resident_bytes_frac "
            "host_bytes_frac disk_bytes_frac family").split()
_LEVELS = (0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1)  # of attention mass: finer where policies differ
_ROW_IN = 0.125
_MAX_NUMBERS = 64  # cells of a heat map that still have room for a number
MAX_ROWS = 60  # of a heat map: more are no page
_GREY = {"color": "#b4b4b4", "linestyle": "none", "markersize": 2.4, "markeredgewidth": 0, "zorder": 1.2}
_MAX_GREY = 40  # policies that a note names
_LEGEND_COLUMNS = 5
FRONT = {"color": "black", "linewidth": 2.4, "alpha": 0.2}


def points_of(results):
    """A row per policy and budget, means over seeds, in the order of families and then of the experiment. `swept`: the experiment gives
    its budget; `selects`: it keeps all tokens and reads some."""
    rows = results.summary
    rows = rows.assign(name=policy_names(rows, results.axes), rank=rows["family"].map(list(FAMILIES).index))
    numbers = [c for c in _SUMMARY if c not in ("recipe", "family")] + ["rank"]
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


def _elsewhere(rows):
    """Which rows hold bytes in host memory or on disk."""
    return rows["host_bytes_frac"] + rows["disk_bytes_frac"] > 0


def _shade(colour, place, count):
    """The colour darker or lighter: one of `count` shades."""
    step = 0.0 if count == 1 else -0.3 + 0.7 * place / (count - 1)
    rgb = np.array(to_rgb(colour))
    return to_hex(rgb * (1 + step) if step < 0 else rgb + (1 - rgb) * step)


def _looks(points):
    """Of each policy: marker and colour by family, shade by place in the family."""
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


def _legend(points, looks, figure, more=()):
    """Families side by side, each under its name: handles, labels and the number of columns. `more`: entries of another block."""
    blocks = [list(more)] if more else []
    for family, rows in points.groupby("family", sort=False):
        names = rows["name"].unique()
        head = Line2D([], [], linestyle="none", marker=MARKERS[family], markersize=4, markerfacecolor="none", markeredgewidth=0.8, color=FAMILIES[family])
        blocks.append([(head, f"{family}:")] + [(Line2D([], [], linestyle="none", markersize=4, markeredgewidth=0, **looks[n]), shown(n, figure)) for n in names])
        if family == "selection" and _elsewhere(rows).any():
            hollow = {"color": FAMILIES[family], "marker": MARKERS[family], "markerfacecolor": "white", "linestyle": "--", "linewidth": 0.7, "markersize": 4}
            blocks[-1].append((Line2D([], [], **hollow), "hollow: rest on the host"))
    height = max(max(map(len, blocks)), -(-sum(map(len, blocks)) // _LEGEND_COLUMNS))
    columns = []
    for block in sorted(blocks, key=len, reverse=True):  # first fit
        room = next((c for c in columns if len(c) + len(block) <= height), None)
        if room is None:
            columns.append(room := [])
        room.extend(block)
    blank = (Line2D([], [], linestyle="none"), "")
    entries = [entry for c in columns for entry in c + [blank] * (height - len(c))]
    return [h for h, _ in entries], [t for _, t in entries], len(columns)


def _mass_scale(axis, low):
    """Stretches masses near 1, where most policies are, as a logarithmic axis of what is lost would."""
    def to_axis(m):
        return -np.log10(np.maximum(1.004 - np.asarray(m, dtype=float), 1e-9))

    axis.set_yscale("function", functions=(to_axis, lambda v: 1.004 - 10.0 ** -np.asarray(v, dtype=float)))
    ticks = [t for t in (0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1) if t >= low]
    axis.set_yticks(ticks, [f"{t:g}" for t in ticks])
    axis.set_ylim(max(0, low - 0.05), 1.0024)


def _draw_curves(axis, points, x, y, looks):
    for name, rows in points[points["name"].isin(looks)].groupby("name", sort=False):
        rows = rows.sort_values(x, kind="stable")
        look = looks[name]
        hollow = _elsewhere(rows).any()
        axis.plot(rows[x], rows[y], linewidth=0.7, alpha=0.75, markersize=3.2, markeredgewidth=0.7,
                  markerfacecolor="white" if hollow else look["color"], linestyle="--" if hollow else "-", **look)


def _place_label(axis, text, x, y, up, taken):
    """Offset in points of a label beside (x, y), further off until it covers no point and no other; it stays inside the panel on the left."""
    scale = 72 / axis.figure.dpi
    px, py = axis.transData.transform((x, y)) * scale
    left = axis.bbox.x0 * scale + 2
    width, height = 3.5 * len(text), 8
    begin = max(left, px - 5 - width)
    off = 8.0
    while off < 60 and any(begin < b + w and b < begin + width and abs(py + up * off - m) < (height + h) / 2 for b, w, m, h in taken):
        off += 1.0
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


def _draw_front(axis, line, x, y):
    axis.plot(line[x], line[y], drawstyle="steps-post", zorder=1.5, solid_capstyle="round", **FRONT)


def _label_front(axis, points, line, x, y, up, figure):
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
    _mass_scale(left, points["attention_mass"].min())
    left.set_ylabel("Attention mass kept\n(share, on a log scale of what is lost)")
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
        plain = rows[(rows["family"] != "reference") & ((x != "resident_bytes_frac") | ~_elsewhere(rows))]
        panels.append((axis, rows, y, sign, rows.loc[front_of(plain, x, y, sign)]))
    chosen, others = choose(points, [line["name"] for *_, line in panels], name, every)
    coloured = points[points["name"].isin(chosen)]
    looks = _looks(coloured)
    for axis, rows, y, _, line in panels:
        draw_others(axis, rows, others, x, y)
        _draw_curves(axis, rows, x, y, looks)
        _draw_front(axis, line, x, y)
    _fidelity_axes(*axes[0], points, lossy, x, title)
    more = [(Line2D([], [], **FRONT), "Pareto front")]

    def place():
        for axis, rows, y, sign, line in panels:
            line = line[line["name"].isin(chosen)]
            if len(line):
                _label_front(axis, rows, line, x, y, sign, name)

    note = " ".join(filter(None, (note, left_out_note(others, name))))
    return style.save(figure, folder, name, *_legend(coloured, looks, name, more), note=note, place=place)


# ---- heat maps ----


def _rows_of(table, points, columns):
    """attention_mass of the points' runs as [points, columns], means over what is not in `columns`."""
    of_run = {run: i for i, runs in enumerate(points["run"]) for run in runs}
    table = table[table["run"].isin(of_run.keys())]
    mean = table.assign(point=table["run"].map(of_run)).groupby(["point", *columns], sort=False)["attention_mass"].mean().unstack(columns)
    order = pd.MultiIndex.from_frame(table[columns].drop_duplicates())
    return mean.reindex(range(len(points)))[order]


def _palette():
    return style.plt.get_cmap("viridis"), BoundaryNorm(_LEVELS, 256)


def _name_rows(axis, points, figure):
    axis.set_yticks(range(len(points)), [shown(n, figure) for n in points["name"]])
    for text, family in zip(axis.get_yticklabels(), points["family"]):
        text.set(fontsize=6, color=FAMILIES[family])
    families = points["family"].tolist()
    for i in range(1, len(families)):
        if families[i] != families[i - 1]:
            axis.axhline(i - 0.5, color="white", linewidth=1.2)
    axis.tick_params(axis="y", length=0)
    axis.grid(visible=False)


def _colour_classes():
    """The colours as entries of a legend."""
    cmap, norm = _palette()
    pairs = list(zip(_LEVELS, _LEVELS[1:]))
    return [Patch(color=cmap(norm((a + b) / 2))) for a, b in pairs], [f"{a:g} to {b:g}" for a, b in pairs]


def _column_groups(axis, groups, title):
    """Names the runs of equal values under the columns and parts them by lines, as many as there is room for."""
    groups = list(groups)
    starts = [i for i, g in enumerate(groups) if i == 0 or g != groups[i - 1]]
    every = -(-len(starts) // 16)
    ends = starts[1:] + [len(groups)]
    axis.set_xticks([(a + b - 1) / 2 for a, b in zip(starts, ends)][::every], [groups[a] for a in starts][::every])
    axis.tick_params(axis="x", length=0)
    for a in starts[1:]:
        axis.axvline(a - 0.5, color="white", linewidth=0.6)
    axis.set_xlabel(title, labelpad=1)


def _heat_map(points, values, groups, title, note, folder, name):
    figure, axes = style.grid(name, 1, 1, style.COLUMN_IN, 0.4 + _ROW_IN * len(points))
    axis = axes[0, 0]
    cmap, norm = _palette()
    axis.imshow(values, cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
    _name_rows(axis, points, name)
    _column_groups(axis, groups, title)
    return style.save(figure, folder, name, *_colour_classes(), title="Attention mass kept (share)", note=note)


def _pages(points, values, groups, title, note, folder, name):
    """Heat maps of these rows: as many as they fill pages."""
    for first in range(0, len(points), MAX_ROWS):
        rows = slice(first, first + MAX_ROWS)
        yield _heat_map(points[rows], values[rows], groups, title, note, folder, name + (f"_{first // MAX_ROWS + 1}" if first else ""))


def _maps(results, points, folder, every):
    """Heads and decode steps of every lossy recipe at one budget, or at all of them."""
    lossy, source = points[(points["attention_mass"] < 1) | points["swept"]], source_of(results)
    for suffix, chosen, note in at_budgets(lossy, every):
        if chosen.empty:
            continue
        printed = " ".join(filter(None, (sentence(note), source)))
        if results.heads is not None:
            heads = _rows_of(results.heads, chosen, ["layer", "kv_head"]).sort_index(axis=1)
            for name in _pages(chosen, heads.to_numpy(), [c[0] for c in heads.columns], "Layer (columns: its KV heads)", printed, folder, f"fidelity_heads{suffix}"):
                yield name, note
        if results.steps is not None:
            steps = _rows_of(results.steps, chosen, ["sample", "step"])
            for name in _pages(chosen, steps.to_numpy(), [c[0] for c in steps.columns], "Sample (columns: its decode steps)", printed, folder, f"fidelity_steps{suffix}"):
                yield name, note


def _one_recipe(results, points, folder):
    """A recipe's layers and KV heads, a panel per setting."""
    table = _rows_of(results.heads, points, ["layer", "kv_head"]).sort_index(axis=1)
    layers, heads = len(table.columns.unique(0)), len(table.columns.unique(1))
    name = f"fidelity_heads_{slug(points['name'].iloc[0])}"
    figure, axes = style.grid(name, 1, len(points), style.COLUMN_IN, 0.9 + max(_ROW_IN * layers, 1.0), sharey=True)
    cmap, norm = _palette()
    for axis, (_, row), values in zip(axes[0], points.iterrows(), table.to_numpy()):
        axis.imshow(values.reshape(layers, heads), cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
        axis.set_title(f"{row['budget_tokens']:.0f} tokens", fontsize=7)
        axis.set_xlabel("KV head", labelpad=1)
        axis.set_xticks(range(0, heads, -(-heads // 8)))
        axis.grid(visible=False)
        if layers * heads <= _MAX_NUMBERS:
            for i, value in enumerate(values):
                axis.text(i % heads, i // heads, f"{value:.2f}"[-3:] if value < 0.995 else "1", ha="center", va="center", fontsize=5, color="white" if value < 0.9 else "black")
    axes[0, 0].set_ylabel("Layer (attention mass kept)")
    axes[0, 0].set_yticks(range(0, layers, -(-layers // 16)))
    return style.save(figure, folder, name, *_colour_classes(), note=source_of(results))


# ---- needles ----


def _needle_cells(axis, points):
    """Recipes by budgets, their own first; with selectors the tokens they read, which may be more than the budget."""
    names, columns = list(points["name"].unique()), ["", *budgets_of(points)[0]][0 if (points["budget"] == "").any() else 1 :]
    cells = np.full((len(names), len(columns)), np.nan)
    for row in points.itertuples():
        column = columns.index(row.budget)
        cells[names.index(row.name), column] = row.needle_kept
        text = f"{100 * row.needle_kept:.0f}" + (f" ({row.attended_tokens:.0f})" if row.selects else "")
        axis.text(column, names.index(row.name), text, ha="center", va="center", fontsize=5.5, color="white" if row.needle_kept < 0.6 else "black")
    axis.imshow(100 * cells, cmap="viridis", vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    _name_rows(axis, points.drop_duplicates("name"), "needles")
    axis.set_xticks(range(len(columns)), [full_name("", b) or "own" for b in columns])
    axis.tick_params(axis="x", length=0)


def _needles(points, source, folder):
    """Share of the needles' tokens that decode steps attend to: what eviction leaves above, what selectors read below."""
    lossy = points[points["swept"] | (points["attention_mass"] < 1)]
    parts = [(p, title) for p, title in ((lossy[~lossy["selects"]], "Needle attended to (%)"), (lossy[lossy["selects"]], "Needle (%) and tokens attended to")) if len(p)]
    if not parts or points["needle_kept"].min() == 1:
        return None
    heights = [p["name"].nunique() for p, _ in parts]
    figure, axes = style.grid("needles", len(parts), 1, style.COLUMN_IN, 0.75 + 0.4 * len(parts) + _ROW_IN * sum(heights), gridspec_kw={"height_ratios": heights})
    for axis, (part, title) in zip(axes[:, 0], parts):
        _needle_cells(axis, part)
        axis.set_xlabel("Budget (tokens)", labelpad=1)
        axis.set_title(title, fontsize=7, pad=3)
    brackets = "In brackets: tokens attended to per step." if lossy["selects"].any() else ""
    return style.save(figure, folder, "needles", note=" ".join(filter(None, (brackets, source))))


def source_of(results):
    """Whose attention was measured."""
    model = setting.sample_model(results.folder) or setting.run_model(results.folder)
    return f"Measured on the attention of the model {model}." if model else ""


def _over_bytes(points, source, folder, every):
    smaller = points[(points["resident_bytes_frac"] < 0.995) | ~points["selects"]]  # the others would stand on one line
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
    results.need("summary", _SUMMARY, "the fidelity figures")
    if results.summary.empty:
        return
    points, source = points_of(results), source_of(results)
    yield _over_bytes(points, source, folder, every)
    reading = points[(points["attention_mass"] < 1) & (points["attended_tokens"] > 0)]
    if not reading.empty:
        yield _fidelity_over(reading, "attended_tokens", "Tokens attended to (per step, layer and KV head)", source, folder, "fidelity_attended", every), ""
    yield from _maps(results, points, folder, every)
    yield _needles(points, source, folder), ""
    if recipe is None and points["name"].nunique() == 1:
        recipe = points["name"].iloc[0]
    if recipe is not None and results.heads is not None:
        chosen = points[points["name"] == recipe]
        if chosen.empty:
            raise ResultsError(f"{results.folder}: has no recipe '{recipe}'; it has: {', '.join(points['name'].unique())}")
        yield _one_recipe(results, chosen, folder), ""
