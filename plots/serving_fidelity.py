"""KV policies in serving against the attention they keep: goodput at the best load, and output at the highest (docs/figures.md)."""

import pandas as pd

import style
from fidelity import FAMILIES, _legend, _looks, _mass_scale, pareto
from load import label_of

_PANELS = (("goodput_per_s", "Goodput at the best load\n(requests/s within the SLO)"), ("output_tokens_per_s", "Output at the highest load\n(tokens/s)"))


def points_of(results):
    """A row per KV policy, means over seeds: attention_mass, goodput_per_s (the most over loads) and output_tokens_per_s (at the highest)."""
    rate = results.rate_axis()
    axes = [a for a in results.axes if a.startswith("kv_policy")]
    others = [a for a in results.axes if a not in axes and a != rate]
    keys = [*axes, *others, *([rate] if rate else [])]
    means = results.summary.groupby(keys, sort=False, dropna=False).agg(
        {"recipe": "first", "family": "first", "budget_tokens": "mean", "resident_bytes_frac": "mean", "attention_mass": "mean",
         "goodput_per_s": "mean", "output_tokens_per_s": "mean"}).reset_index()
    points = []
    settings = [*axes, *others]
    for _, rows in means.groupby(settings if len(settings) > 1 else settings[0], sort=False, dropna=False):
        last = rows.sort_values(rate, kind="stable").iloc[-1] if rate else rows.iloc[-1]
        name = ", ".join(filter(None, (last["recipe"], label_of(last, others, False))))
        points.append({"name": name, "family": last["family"], "attention_mass": last["attention_mass"], "goodput_per_s": rows["goodput_per_s"].max(),
                       "output_tokens_per_s": last["output_tokens_per_s"], "resident_bytes_frac": last["resident_bytes_frac"]})
    names = [p["name"] for p in points]
    for p in points:  # one recipe in several forms: the bytes tell them apart
        if names.count(p["name"]) > 1:
            p["name"] += f" ({100 * p['resident_bytes_frac']:.0f} % of bytes)"
    table = pd.DataFrame(points).assign(host_bytes_frac=0.0, disk_bytes_frac=0.0)
    return table.sort_values("family", key=lambda f: f.map(list(FAMILIES).index), kind="stable", ignore_index=True)


def _draw_panel(axis, points, looks, column, title):
    x, y = points[column].tolist(), points["attention_mass"].tolist()
    front = pareto([-v for v in x], y)  # more requests, more attention
    axis.plot([x[i] for i in front], [y[i] for i in front], drawstyle="steps-post", color="black", linewidth=2.4, alpha=0.2, zorder=1.5)
    for p in points.to_dict("records"):
        axis.plot(p[column], p["attention_mass"], linestyle="none", markersize=4.5, markeredgewidth=0, alpha=0.9, **looks[p["name"]])
    axis.set_xlabel(title)
    axis.set_ylabel("Attention mass kept")
    axis.set_xlim(0, 1.08 * max(x))
    _mass_scale(axis, min(y))
    axis.set_ylim(top=1.0015)


def draw(results, folder, every=False):
    """Yields (name, note) of the figure, where serving runs replayed their KV policies too."""
    if not results.measures_attention or results.is_replay:
        return
    points = points_of(results)
    panels = [p for p in _PANELS if results.summary[p[0]].notna().any()]
    figure, axes = style.plt.subplots(1, len(panels), figsize=(style.PAGE_IN, 2.6), squeeze=False)
    looks = _looks(points)
    for axis, (column, title) in zip(axes[0], panels):
        _draw_panel(axis, points, looks, column, title)
    handles, labels, columns = _legend(points, looks)
    yield style.save(figure, folder, "serving_fidelity", handles, labels, columns), ""
