"""KV policies in serving against the attention they keep: goodput at the best load, and output at the highest (docs/figures.md)."""

import pandas as pd

import setting
import style
from fidelity import FAMILIES, _legend, _looks, _mass_scale, pareto
from groups import combinations
from load import label_of

_PANELS = (("goodput_per_s", "Goodput at the best load\n(requests/s within the SLO)"), ("output_tokens_per_s", "Output at the highest load\n(tokens/s)"))
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
    x, y = points[column].tolist(), points["attention_mass"].tolist()
    front = pareto([-v for v in x], y)  # more requests, more attention
    axis.plot([x[i] for i in front], [y[i] for i in front], drawstyle="steps-post", color="black", linewidth=2.4, alpha=0.2, zorder=1.5)
    for p in points.to_dict("records"):
        axis.plot(p[column], p["attention_mass"], linestyle="none", markersize=4.5, markeredgewidth=0, alpha=0.9, **looks[p["name"]])
    axis.set_xlabel(title)
    axis.set_xlim(0, 1.08 * max(x))
    _mass_scale(axis, min(y))
    axis.set_ylim(top=1.0015)


def draw(results, folder, every=False):
    """Yields (name, note) of the figure, where serving runs replayed their KV policies too."""
    if not results.measures_attention or results.is_replay or results.summary.empty:
        return
    points = points_of(results)
    panels = [p for p in _PANELS if results.summary[p[0]].notna().any()]
    figure, axes = style.plt.subplots(1, len(panels), figsize=(style.PAGE_IN, 2.6), squeeze=False)
    looks = _looks(points)
    model, samples = setting.run_model(results.folder), setting.sample_model(results.folder)
    measured = "Attention mass kept" + (f"\n(by the model {samples})" if samples else "")
    for axis, (column, title) in zip(axes[0], panels):
        _draw_panel(axis, points, looks, column, title + (f", {model}" if model else ""))
    axes[0][0].set_ylabel(measured)
    handles, labels, columns = _legend(points, looks)
    yield style.save(figure, folder, "serving_fidelity", handles, labels, columns), ""
