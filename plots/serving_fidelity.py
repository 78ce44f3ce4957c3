"""KV policies in serving against the attention they keep: goodput at the best load, and output at the highest (docs/figures.md)."""

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

import setting
import style
from families import FAMILIES
from fidelity import FRONT, draw_front, label_front, legend_of, looks_of, mass_scale, pareto
from groups import combinations, only_labels
from load import label_of
from names import model_name, shown

PANELS = (("goodput_per_s", "Goodput at the best load\n(requests/s within the SLO)"), ("output_tokens_per_s", "Output at the highest load\n(tokens/s)"))
_SAME_PLACE = 0.012  # of the axes: points that near cover each other
_MEANS = ["resident_bytes_frac", "attention_mass", "goodput_per_s", "output_tokens_per_s"]


def _at_loads(rows, rate):
    """Means over seeds: a row per load, the highest last."""
    return rows[_MEANS].groupby(rows[rate], dropna=False).mean() if rate else rows[_MEANS].mean().to_frame().T


def points_of(results):
    """A row per KV policy, means over seeds: attention_mass, goodput_per_s (the most over loads) and output_tokens_per_s (at the highest)."""
    rate = results.rate_axis()
    axes = [a for a in results.axes if a.startswith("kv_policy")]
    others = [a for a in results.axes if a not in axes and a != rate]
    points = []
    for _, rows in combinations(results.summary, [*axes, *others]):
        first, loads = rows.iloc[0], _at_loads(rows, rate)
        name = ", ".join(filter(None, (first["recipe"], label_of(first, others, False))))
        points.append({"name": name, "family": first["family"], **loads.iloc[-1].to_dict(), "goodput_per_s": loads["goodput_per_s"].max()})
    names = [p["name"] for p in points]
    for p in points:  # one recipe in several forms: the bytes tell them apart
        if names.count(p["name"]) > 1:
            p["name"] += f" ({100 * p['resident_bytes_frac']:.0f} % of bytes)"
    table = pd.DataFrame(points).assign(host_bytes_frac=0.0, disk_bytes_frac=0.0)
    return table.sort_values("family", key=lambda f: f.map(list(FAMILIES).index), kind="stable", ignore_index=True)


def _draw_panel(axis, points, looks, column, title):
    """Returns the labels of the points on the front: more requests, more attention."""
    x = points[column]
    for p in points.to_dict("records"):
        axis.plot(p[column], p["attention_mass"], linestyle="none", markersize=4.5, markeredgewidth=0, alpha=0.9, **looks[p["name"]])
    axis.set_xlabel(title)
    axis.set_xlim(0, 1.08 * x.max())
    mass_scale(axis, points["attention_mass"].min(), points["attention_mass"].max())
    line = points.iloc[pareto((-x).tolist(), points["attention_mass"].tolist())]
    draw_front(axis, line, column, "attention_mass")
    return line


def together(points, columns):
    """Policies whose points cover each other in every panel, by the first of them: their names."""
    places = points[[*columns, "attention_mass"]] / points[[*columns, "attention_mass"]].max()
    groups = []
    for name, place in zip(points["name"], places.to_numpy()):
        near = next((g for g in groups if np.abs(g[0] - place).max() < _SAME_PLACE), None)
        if near is None:
            groups.append(near := (place, []))
        near[1].append(name)
    return [names for _, names in groups if len(names) > 1]


def _y_label(results):
    model, budget = model_name(setting.sample_model(results.folder)), setting.budget_tokens(results.folder)
    told = "\n".join(filter(None, (f"on the model {model}" if model else "", f"budget {budget} tokens" if budget else "")))
    return "Attention mass kept" + (f"\nmeasured {told}" if told else "")


def draw(results, folder, every=False):
    """Yields (name, note) of the figure, where serving runs replayed their KV policies too."""
    if not results.measures_attention or results.is_replay or results.summary.empty:
        return
    name, points = "serving_fidelity", points_of(results)
    points = points[points["name"].isin(only_labels(points["name"], name))].reset_index(drop=True)
    panels = [p for p in PANELS if results.summary[p[0]].notna().any()]
    figure, axes = style.grid(name, 1, len(panels), style.PAGE_IN, 2.6)
    looks, model, hardware = looks_of(points), model_name(setting.run_model(results.folder)), setting.run_hardware(results.folder)
    simulated = f"\nsimulated: {model}{f' on {hardware}' if hardware else ''}" if model else ""
    lines = [_draw_panel(axis, points, looks, column, title + simulated) for axis, (column, title) in zip(axes[0], panels)]
    axes[0][0].set_ylabel(_y_label(results))

    def place():
        for axis, (column, _), line in zip(axes[0], panels, lines):
            label_front(axis, points, line, column, "attention_mass", -1, name)

    same = together(points, [column for column, _ in panels])
    note = f"On one point: {'; '.join(', '.join(shown(n, name) for n in names) for names in same)}." if same else ""
    yield style.save(figure, folder, name, *legend_of(points, looks, name, [(Line2D([], [], **FRONT), "Pareto front")]), note=note, place=place), ""
