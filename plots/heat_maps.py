"""Heat maps of KV policies on recorded attention: per layer and head, per decode step, and of the needles (docs/replay.md)."""

import numpy as np
import pandas as pd
from matplotlib.colors import BoundaryNorm
from matplotlib.patches import Patch

import setting
import style
from families import FAMILIES
from groups import at_budgets, budgets_of, sentence
from load import slug
from names import model_name, shown
from policies import full_name

_LEVELS = (0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 1)  # of attention mass: finer where policies differ
ROW_IN = 0.125
_MAX_NUMBERS = 64  # cells of a heat map that still have room for a number
MAX_ROWS = 60  # of a heat map: more are no page


def source_of(results):
    """Whose attention was measured."""
    model = model_name(setting.sample_model(results.folder) or setting.run_model(results.folder))
    return f"Measured on the attention of the model {model}." if model else ""


def rows_of(table, points, columns):
    """attention_mass of the points' runs as [points, columns], means over what is not in `columns`."""
    of_run = {run: i for i, runs in enumerate(points["run"]) for run in runs}
    table = table[table["run"].isin(of_run.keys())]
    mean = table.assign(point=table["run"].map(of_run)).groupby(["point", *columns], sort=False)["attention_mass"].mean().unstack(columns)
    order = pd.MultiIndex.from_frame(table[columns].drop_duplicates())
    return mean.reindex(range(len(points)))[order]


def _palette():
    return style.plt.get_cmap("viridis"), BoundaryNorm(_LEVELS, 256)


def name_rows(axis, points, figure):
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
    """Names runs of equal values under the columns, where there is room, with lines between them."""
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
    figure, axes = style.grid(name, 1, 1, style.COLUMN_IN, 0.4 + ROW_IN * len(points))
    axis = axes[0, 0]
    cmap, norm = _palette()
    axis.imshow(values, cmap=cmap, norm=norm, aspect="auto", interpolation="nearest")
    name_rows(axis, points, name)
    _column_groups(axis, groups, title)
    return style.save(figure, folder, name, *_colour_classes(), title="Attention mass kept (share)", note=note)


def _pages(points, values, groups, title, note, folder, name):
    """Heat maps of these rows, one per page."""
    for first in range(0, len(points), MAX_ROWS):
        rows = slice(first, first + MAX_ROWS)
        yield _heat_map(points[rows], values[rows], groups, title, note, folder, name + (f"_{first // MAX_ROWS + 1}" if first else ""))


def maps(results, points, folder, every):
    """Heads and decode steps of every lossy recipe at one budget, or at all of them."""
    lossy, source = points[(points["attention_mass"] < 1) | points["swept"]], source_of(results)
    for suffix, chosen, note in at_budgets(lossy, every):
        if chosen.empty:
            continue
        printed = " ".join(filter(None, (sentence(note), source)))
        if results.heads is not None:
            heads = rows_of(results.heads, chosen, ["layer", "kv_head"]).sort_index(axis=1)
            for name in _pages(chosen, heads.to_numpy(), [c[0] for c in heads.columns], "Layer (columns: its KV heads)", printed, folder, f"fidelity_heads{suffix}"):
                yield name, note
        if results.steps is not None:
            steps = rows_of(results.steps, chosen, ["sample", "step"])
            for name in _pages(chosen, steps.to_numpy(), [c[0] for c in steps.columns], "Sample (columns: its decode steps)", printed, folder, f"fidelity_steps{suffix}"):
                yield name, note


def one_recipe(results, points, folder):
    """A recipe's layers and KV heads, a panel per setting."""
    table = rows_of(results.heads, points, ["layer", "kv_head"]).sort_index(axis=1)
    layers, heads = len(table.columns.unique(0)), len(table.columns.unique(1))
    name = f"fidelity_heads_{slug(points['name'].iloc[0])}"
    figure, axes = style.grid(name, 1, len(points), style.COLUMN_IN, 0.9 + max(ROW_IN * layers, 1.0), sharey=True)
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
    name_rows(axis, points.drop_duplicates("name"), "needles")
    axis.set_xticks(range(len(columns)), [full_name("", b) or "own" for b in columns])
    axis.tick_params(axis="x", length=0)


def needles(points, source, folder):
    """Share of the needles' tokens that decode steps attend to: what eviction leaves above, what selectors read below."""
    lossy = points[points["swept"] | (points["attention_mass"] < 1)]
    parts = [(p, title) for p, title in ((lossy[~lossy["selects"]], "Needle attended to (%)"), (lossy[lossy["selects"]], "Needle (%) and tokens attended to")) if len(p)]
    if not parts or points["needle_kept"].min() == 1:
        return None
    heights = [p["name"].nunique() for p, _ in parts]
    figure, axes = style.grid("needles", len(parts), 1, style.COLUMN_IN, 0.75 + 0.4 * len(parts) + ROW_IN * sum(heights), gridspec_kw={"height_ratios": heights})
    for axis, (part, title) in zip(axes[:, 0], parts):
        _needle_cells(axis, part)
        axis.set_xlabel("Budget (tokens)", labelpad=1)
        axis.set_title(title, fontsize=7, pad=3)
    brackets = "In brackets: tokens attended to per step." if lossy["selects"].any() else ""
    return style.save(figure, folder, "needles", note=" ".join(filter(None, (brackets, source))))
