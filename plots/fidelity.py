"""KV policies on recorded attention: fidelity over bytes and over tokens read, per head, per step, and of the needles (docs/replay.md)."""

import numpy as np
import pandas as pd
from matplotlib.colors import BoundaryNorm
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import style
from groups import at_budgets, budgets_of, policy_names, sentence
from load import ResultsError, slug
from policies import full_name

# Colours of the families, in the order of legends and tables.
FAMILIES = {"position": "#8c1d40", "attention": "#1f5fa8", "keys and values": "#d08a00", "expected attention": "#2f8f6b", "merging": "#8f6fc0",
            "eviction and format": "#d9508e", "format": "#b8500c", "selection": "#3fa7c4", "prefill selection": "#7a8f1d", "reference": "#303030"}
_SUMMARY = ("recipe budget_tokens attention_mass output_rel_err topk_recall needle_kept attended_tokens resident_bytes_frac "
            "host_bytes_frac disk_bytes_frac family").split()
_LEVELS = (0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1)  # of attention mass: finer where policies differ
_ROW_IN = 0.125
_MAX_NUMBERS = 64  # cells of a heat map that still have room for a number


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


def _looks(points):
    """Colour by family, marker by place in the family."""
    looks = {}
    for family, rows in points.groupby("family", sort=False):
        for i, name in enumerate(rows["name"].unique()):
            looks[name] = {"color": FAMILIES[family], "marker": style._MARKERS[i % len(style._MARKERS)]}
    return looks


def _legend(points, looks):
    """Families side by side, each under its name: handles, labels and the number of columns."""
    blocks = []
    for family, rows in points.groupby("family", sort=False):
        names = rows["name"].unique()
        blocks.append([(Line2D([], [], linewidth=3, color=FAMILIES[family]), family)] + [(Line2D([], [], linestyle="none", markersize=4, markeredgewidth=0, **looks[n]), n) for n in names])
        if family == "selection" and _elsewhere(rows).any():
            hollow = {"color": FAMILIES[family], "marker": "o", "markerfacecolor": "white", "linestyle": "--", "linewidth": 0.7, "markersize": 4}
            blocks[-1].append((Line2D([], [], **hollow), "hollow: rest on the host"))
    height = max(map(len, blocks))
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
    for name, rows in points.groupby("name", sort=False):
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


def _label_front(axis, points, front, x, y, up):
    """The front as a step line, and each recipe's name at one of its points there."""
    line = points.loc[front]
    axis.plot(line[x], line[y], drawstyle="steps-post", color="black", linewidth=2.4, alpha=0.2, zorder=1.5, solid_capstyle="round")
    taken = [(px - 2, 4, py, 4) for px, py in axis.transData.transform(points[[x, y]].to_numpy(dtype=float)) * 72 / axis.figure.dpi]
    for row in _spread(axis, line, x, y).to_dict("records"):
        offset = _place_label(axis, row["name"], row[x], row[y], up, taken)
        axis.annotate(row["name"], (row[x], row[y]), offset, textcoords="offset points", ha="left", va="center", fontsize=6, color=FAMILIES[row["family"]],
                      bbox={"boxstyle": "square,pad=0.05", "facecolor": "white", "alpha": 0.7, "linewidth": 0},
                      arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "#707070", "shrinkA": 0, "shrinkB": 1.5})


def _fidelity_over(points, x, title, looks, folder, name):
    """Attention mass and output error over x, a curve per recipe. The front leaves out references, and over bytes what has some elsewhere."""
    figure, (left, right) = style.plt.subplots(1, 2, figsize=(style.PAGE_IN, 2.9))
    _draw_curves(left, points, x, "attention_mass", looks)
    lossy = points[points["output_rel_err"] > 0]
    _draw_curves(right, lossy, x, "output_rel_err", looks)
    for axis in (left, right):
        style.logarithmic(axis, "x", points[x].min(), points[x].max())
        axis.set_xlim(points[x].min() * 0.5, points[x].max() * 1.15)
        axis.set_xlabel(title)
    _mass_scale(left, points["attention_mass"].min())
    left.set_ylabel("Attention mass kept (share)")
    if len(lossy):
        style.logarithmic(right, "y", lossy["output_rel_err"].min(), lossy["output_rel_err"].max())
        right.set_ylim(bottom=lossy["output_rel_err"].min() * 0.45)
    right.set_ylabel("Relative output error (ratio)")
    handles, labels, columns = _legend(points, looks)
    with_front = [(left, points, "attention_mass", 1), (right, lossy, "output_rel_err", -1)]
    figure.tight_layout()
    for axis, rows, y, sign in with_front:
        plain = rows[(rows["family"] != "reference") & ((x != "resident_bytes_frac") | ~_elsewhere(rows))]
        front = [plain.index[i] for i in pareto(plain[x].to_numpy(), sign * plain[y].to_numpy())]
        if front:
            _label_front(axis, rows, front, x, y, sign)
    return style.save(figure, folder, name, handles, labels, columns)


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


def _name_rows(axis, points):
    axis.set_yticks(range(len(points)), points["name"])
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
    figure, axis = style.plt.subplots(figsize=(style.COLUMN_IN, 0.4 + _ROW_IN * len(points)))
    cmap, norm = _palette()
    axis.imshow(values, cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
    _name_rows(axis, points)
    _column_groups(axis, groups, title)
    return style.save(figure, folder, name, *_colour_classes(), title="Attention mass kept (share)", note=sentence(note))


def _maps(results, points, folder, every):
    """Heads and decode steps of every lossy recipe at one budget, or at all of them."""
    lossy = points[(points["attention_mass"] < 1) | points["swept"]]
    for suffix, chosen, note in at_budgets(lossy, every):
        if chosen.empty:
            continue
        if results.heads is not None:
            heads = _rows_of(results.heads, chosen, ["layer", "kv_head"]).sort_index(axis=1)
            yield _heat_map(chosen, heads.to_numpy(), [c[0] for c in heads.columns], "Layer (columns: its KV heads)", note, folder, f"fidelity_heads{suffix}"), note
        if results.steps is not None:
            steps = _rows_of(results.steps, chosen, ["sample", "step"])
            yield _heat_map(chosen, steps.to_numpy(), [c[0] for c in steps.columns], "Sample (columns: its decode steps)", note, folder, f"fidelity_steps{suffix}"), note


def _one_recipe(results, points, folder):
    """A recipe's layers and KV heads, a panel per setting."""
    table = _rows_of(results.heads, points, ["layer", "kv_head"]).sort_index(axis=1)
    layers, heads = len(table.columns.unique(0)), len(table.columns.unique(1))
    figure, axes = style.plt.subplots(1, len(points), figsize=(style.COLUMN_IN, 0.9 + max(_ROW_IN * layers, 1.0)), sharey=True, squeeze=False)
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
    return style.save(figure, folder, f"fidelity_heads_{slug(points['name'].iloc[0])}", *_colour_classes())


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
    _name_rows(axis, points.drop_duplicates("name"))
    axis.set_xticks(range(len(columns)), [full_name("", b) or "own" for b in columns])
    axis.tick_params(axis="x", length=0)


def _needles(points, folder):
    """Share of the needles' tokens that decode steps attend to: what eviction leaves above, what selectors read below."""
    lossy = points[points["swept"] | (points["attention_mass"] < 1)]
    parts = [(p, title) for p, title in ((lossy[~lossy["selects"]], "Needle attended to (%)"), (lossy[lossy["selects"]], "Needle (%) and tokens attended to")) if len(p)]
    if not parts or points["needle_kept"].min() == 1:
        return None
    heights = [p["name"].nunique() for p, _ in parts]
    figure, axes = style.plt.subplots(len(parts), 1, figsize=(style.COLUMN_IN, 0.75 + 0.4 * len(parts) + _ROW_IN * sum(heights)), squeeze=False,
                                      gridspec_kw={"height_ratios": heights})
    for axis, (part, title) in zip(axes[:, 0], parts):
        _needle_cells(axis, part)
        axis.set_xlabel("Budget (tokens)", labelpad=1)
        axis.set_title(title, fontsize=7, pad=3)
    return style.save(figure, folder, "needles")


def draw(results, folder, every=False, recipe=None):
    """Yields (name, note) of the figures written."""
    results.need("summary", _SUMMARY, "the fidelity figures")
    if results.summary.empty:
        return
    points = points_of(results)
    looks = _looks(points)
    smaller = points[(points["resident_bytes_frac"] < 0.995) | ~points["selects"]]  # the others would stand on one line
    notes = ["selectors that keep all bytes are in fidelity_attended"] if len(smaller) < len(points) else []
    some = smaller[smaller["resident_bytes_frac"] > 0]  # the axis is logarithmic
    if len(some) < len(smaller):
        notes.append(f"without what keeps no bytes on the GPU: {', '.join(smaller.drop(some.index)['name'].unique())}")
    title = "KV bytes on the GPU (share of the full cache)"
    if not some.empty:
        yield _fidelity_over(some, "resident_bytes_frac", title, looks, folder, "fidelity_bytes"), "; ".join(notes)
    reading = points[(points["attention_mass"] < 1) & (points["attended_tokens"] > 0)]
    if not reading.empty:
        yield _fidelity_over(reading, "attended_tokens", "Tokens attended to (per step, layer and KV head)", looks, folder, "fidelity_attended"), ""
    yield from _maps(results, points, folder, every)
    needles = _needles(points, folder)
    if needles:
        yield needles, ""
    if recipe is None and points["name"].nunique() == 1:
        recipe = points["name"].iloc[0]
    if recipe is not None and results.heads is not None:
        chosen = points[points["name"] == recipe]
        if chosen.empty:
            raise ResultsError(f"{results.folder}: has no recipe '{recipe}'; it has: {', '.join(points['name'].unique())}")
        yield _one_recipe(results, chosen, folder), ""
