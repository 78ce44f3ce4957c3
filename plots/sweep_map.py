"""A sweep with several numeric axes as heat maps over two of them; each cell is the best over the others."""

import numpy as np
from matplotlib.patches import Patch

import best
import settings
import style
from groups import MAX_SETTINGS, combinations
from load import axis_title, is_numeric, label_of, value_text
from metrics import is_cost
from names import shown

NAME = "settings"
_MOST_PANELS, _CLASSES = 6, 6
_NUMBER_IN = 0.24  # width of a cell that has room for a number


def numeric_axes(results):
    """Numeric axes that vary, those with most values first."""
    rows = results.summary
    found = [a for a in results.axes if is_numeric(rows[a]) and rows[a].nunique() > 1]
    return sorted(found, key=lambda a: -rows[a].nunique())


def _cells(rows, y, x, others, column):
    """The best mean over seeds in each cell, as [values of y, values of x]; NaN where nothing was run."""
    means = rows.groupby([y, x, *others], sort=True, dropna=False)[column].mean()
    cells = means.groupby(level=[0, 1])
    return (cells.min() if is_cost(column) else cells.max()).unstack()


def _classes(values):
    """Ends of the colours' classes, round numbers."""
    low, high = np.nanmin(values), np.nanmax(values)
    return np.linspace(low, high, _CLASSES + 1) if high > low else np.array([low, low + 1])


def _panel(axis, cells, ends, title, has_numbers):
    colours = style.plt.get_cmap("viridis", len(ends) - 1)
    place = np.clip(np.digitize(cells.to_numpy(), ends[1:-1]), 0, len(ends) - 2).astype(float)
    place[np.isnan(cells.to_numpy())] = np.nan
    axis.imshow(place, cmap=colours, vmin=-0.5, vmax=len(ends) - 1.5, aspect="auto", interpolation="nearest", origin="lower")
    if has_numbers:
        for (i, j), value in np.ndenumerate(cells.to_numpy()):
            if np.isfinite(value):
                axis.text(j, i, style.three_digits(value), ha="center", va="center", fontsize=5, color="white" if place[i, j] < 0.6 * len(ends) - 1 else "black")
    for which, values in (("x", cells.columns), ("y", cells.index)):
        every = -(-len(values) // 8)
        getattr(axis, f"set_{which}ticks")(range(0, len(values), every), [value_text(v) for v in values[::every]])
    axis.tick_params(length=0)
    axis.grid(visible=False)
    style.panel_title(axis, title)


def _panels_of(results, text, column):
    """(title, rows) of the combinations of the text axes, six at most, those with the best cells first chosen; and the number of all."""
    found = [(label_of(rows.iloc[0], text, False), rows) for _, rows in combinations(results.summary, text)]
    ranked = sorted(range(len(found)), key=lambda i: found[i][1][column].min() if is_cost(column) else -found[i][1][column].max())
    return [found[i] for i in sorted(ranked[:_MOST_PANELS])], len(found)


def draw(results, folder, every=False):
    """Yields (name, note) of the figure, where two numeric axes or more have many combinations."""
    rows, axes = results.summary, numeric_axes(results) if results.summary is not None and not results.is_hit_ratio else []
    column = best.objective(rows) if len(axes) > 1 else None
    if column is None or len(rows[axes].drop_duplicates()) <= MAX_SETTINGS:
        return
    x, y, *others = axes
    text = [a for a in results.axes if a not in axes and rows[a].nunique(dropna=False) > 1]
    panels, num = _panels_of(results, text, column)
    maps = [(title, _cells(part, y, x, others, column)) for title, part in panels]
    maps = [(title, cells) for title, cells in maps if cells.notna().any(axis=None)]
    ends = _classes(np.concatenate([cells.to_numpy().ravel() for _, cells in maps]))
    figure, drawn = style.facets(NAME, len(maps), 0.7 + 0.14 * rows[y].nunique())
    panel_in = (style.width_of(NAME, style.COLUMN_IN) - 0.5) / min(2, len(maps))
    for axis, (title, cells) in zip(drawn, maps):
        _panel(axis, cells, ends, shown(title, NAME), cells.shape[1] * _NUMBER_IN <= panel_in)
    style.outer_labels(drawn, axis_title(x), axis_title(y))
    colours = style.plt.get_cmap("viridis", len(ends) - 1)
    handles = [Patch(color=colours(i)) for i in range(len(ends) - 1)]
    labels = [f"{style.three_digits(a)} to {style.three_digits(b)}" for a, b in zip(ends, ends[1:])]
    over = f" over {', '.join(axis_title(a).lower() for a in others)}" if others else ""
    sentence = best.sentence(column)
    notes = [f"Each cell: the {sentence}{over}, mean over seeds."] + ([f"{len(maps)} of {num} panels, those with the best cells."] if len(maps) < num else [])
    title = settings.of(NAME).get("title", f"{sentence[0].upper()}{sentence[1:]}")
    yield style.save(figure, folder, NAME, handles, labels, title=title, note=" ".join([*notes, results.source]).strip()), ""
