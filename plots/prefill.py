"""Prompts that attend to chosen tokens alone: attention kept and output error over the query-key pairs computed (docs/kv-policies.md)."""

from matplotlib.lines import Line2D

import style
from groups import only_labels, policy_names
from heat_maps import source_of
from names import shown

NAME = "prefill_attention"
_PANELS = (("mass_kept", "Attention mass kept (share)"), ("output_rel_err", "Relative output error (ratio)"))


def points_of(results):
    """A row per policy and recorded prompt that computes fewer than all pairs, with its family and name."""
    rows = results.summary.assign(name=policy_names(results.summary, results.axes))[["run", "name", "family"]].drop_duplicates("run")
    points = results.prompts.merge(rows, on="run")
    return points[points["pairs_frac"] < 1]


def _scale(axis, points, column):
    if column == "output_rel_err" and (points[column] > 0).all():
        style.logarithmic(axis, "y", points[column].min(), points[column].max())
        axis.set_ylim(points[column].min() / 1.4, points[column].max() * 1.4)
    axis.set_xlim(0, min(1.0, 1.08 * points["pairs_frac"].max()))


def _legend_of(looks):
    handles = [Line2D([], [], linestyle="none", markersize=5, markeredgewidth=0, **look) for look in looks.values()]
    return handles, [shown(policy, NAME) for policy in looks]


def draw(results, folder, every=False):
    """Yields (name, note) of the figure, where a replay has prompts with selected attention."""
    if results.prompts is None or results.prompts.empty:
        return
    results.need("prompts", ["run", "sample", "pairs_frac", *(c for c, _ in _PANELS)], f"the figure {NAME}")
    points = points_of(results)
    points = points[points["name"].isin(only_labels(points["name"].unique(), NAME))]
    if points.empty:
        return
    figure, axes = style.grid(NAME, 1, 2, style.PAGE_IN, 2.4)
    looks = {policy: {key: style.point(i)[key] for key in ("color", "marker")} for i, policy in enumerate(points["name"].unique())}
    samples = list(points["sample"].unique())
    for axis, (column, title) in zip(axes[0], _PANELS):
        for (policy, sample), rows in points.groupby(["name", "sample"], sort=False):
            hollow = {"markerfacecolor": "none", "markeredgewidth": 0.9} if samples.index(sample) % 2 else {"markeredgewidth": 0}
            axis.plot(rows["pairs_frac"], rows[column], linestyle="none", markersize=5, **looks[policy], **hollow)
        _scale(axis, points, column)
        axis.set_ylabel(title)
        axis.set_xlabel("Query-key pairs computed (share)")
    marks = f"Filled: {', '.join(samples[::2])}" + (f"; hollow: {', '.join(samples[1::2])}" if len(samples) > 1 else "")
    lengths = f"n = {len(samples)} prompt{'s' if len(samples) > 1 else ''}."
    yield style.save(figure, folder, NAME, *_legend_of(looks), note=" ".join(filter(None, (f"{marks}.", lengths, source_of(results))))), ""
