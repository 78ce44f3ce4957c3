"""Cost and accuracy of KV policies: right answers over time per token, predicted by the simulator and measured by the engine (docs/engine.md).

Joins two results folders by recipe and budget: graded answers (docs/accuracy.md) and a serving experiment with `host: [sim, engine]`.
"""

import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator

import entries
import setting
import style
from accuracy import points_of as answers_of
from families import FAMILIES, MARKERS
from groups import at_first, others_of, sentence
from load import Unjoinable, value_text
from names import model_name, shown
from policies import full_name

NAME = "frontier"
_LOG_FROM = 10  # the largest latency over the median from which the axis is logarithmic

METRICS = (("tpot_mean_ms", "Time per output token (ms)"), ("e2e_mean_ms", "End-to-end latency (ms)"))


def _served(serving):
    """A row per policy with its metrics by host at the lowest load, those measured on one host only, and the values of other axes drawn."""
    rows = serving.summary
    loads = [a for a in serving.axes if a in ("load_frac", serving.rate_axis())]
    lowest = {a: rows[a].min() for a in loads}
    for axis, load in lowest.items():
        rows = rows[rows[axis] == load]
    rows, others = at_first(rows, [a for a in others_of(serving.summary, serving.axes) if a not in ("host", *loads)])
    metrics = [m for m, _ in METRICS]
    means = rows.groupby(["policy", "budget", "host"], sort=False)[metrics].mean().unstack("host").reindex(columns=pd.MultiIndex.from_product([metrics, ("sim", "engine")]))
    means.columns = ["_".join(c) for c in means.columns]
    return means, lowest | others


def _note(setting, asked, served, answers, joined):
    """Which values are drawn, and which policies are not. `joined`: names of those that are."""
    notes, one_host = [], served.loc[served.isna().any(axis=1), "name"]
    for what, values in (("at", setting), ("answers of", asked)):
        notes += [f"{what} " + ", ".join(f"{a.split('.')[-1]} {value_text(v)}" for a, v in values.items())] if values else []
    for what, names in (("on one host only", one_host),
                        ("only graded", answers.loc[~answers["name"].isin([*joined, *one_host]), "name"]),
                        ("only served", served.loc[~served["name"].isin([*joined, *one_host]), "name"])):
        notes += [f"{what}: {', '.join(names[:4])}" + (f" and {len(names) - 4} more" if len(names) > 4 else "")] if len(names) else []
    return "; ".join(notes)


def points_of(accuracy, serving):
    """A row per policy that both folders have: its answers, and each metric by host at the lowest load; and what the note says. Unjoinable:
    there is none."""
    rows, asked = at_first(accuracy.summary, others_of(accuracy.summary, accuracy.axes))
    answers = answers_of(rows)
    answers["name"] = [full_name(p, b) for p, b in zip(answers["name"], answers["budget"])]
    served, setting = _served(serving)
    served.insert(0, "name", [full_name(p, b) for p, b in served.index])
    points = served.dropna().merge(answers[["name", "exact_match_frac", "below", "above", "num_answers", "resident_bytes_frac", "family"]], on="name")
    points = points[~points["name"].map(entries.has_place)].reset_index(drop=True)  # a place in one list says nothing of the other
    if points.empty:
        raise Unjoinable(f"no KV policy is in both folders, by recipe and budget: {accuracy.folder} grades {', '.join(answers['name'])}; {serving.folder} serves "
                           f"{', '.join(served['name'])}, which needs both hosts for each")
    return points, _note(setting, asked, served, answers, points["name"])


def spread(heights, gap, top):
    """Ascending heights moved apart to at least `gap`, none above `top` where there is room."""
    places = []
    for height in heights:
        places.append(max(height, places[-1] + gap) if places else height)
    for i in range(len(places) - 1, -1, -1):
        limit = top if i == len(places) - 1 else places[i + 1] - gap
        places[i] = min(places[i], limit)
    return places


def _name_points(axis, points):
    """A column of names beside the panel, each with a line to its point."""
    points = points.sort_values("exact_match_frac", kind="stable")
    unit = 1000 if style.in_seconds(_most_ms(points, METRICS[1][0])) else 1
    low, high = axis.get_ylim()
    heights = [(y - low) / (high - low) for y in points["exact_match_frac"]]
    gap = min(7 / (axis.bbox.height * 72 / axis.figure.dpi), 1 / len(points))
    for p, height in zip(points.to_dict("records"), spread(heights, gap, 1)):
        end = max(p[f"{METRICS[1][0]}_sim"], p[f"{METRICS[1][0]}_engine"]) / unit
        axis.annotate(shown(p["name"], NAME), (end, p["exact_match_frac"]), (1.04, height), textcoords="axes fraction", va="center", fontsize=6, color=FAMILIES[p["family"]],
                      arrowprops={"arrowstyle": "-", "linewidth": 0.4, "color": "#909090", "shrinkA": 0, "shrinkB": 3}, annotation_clip=False)


def _most_ms(points, metric):
    return points[[f"{metric}_sim", f"{metric}_engine"]].to_numpy().max()


def _size(share):
    """Size of a mark in points: its area grows with the share of the full cache's bytes."""
    return 3 + 9 * np.sqrt(share)


def _draw_points(axis, points, metric, unit):
    for p in points.to_dict("records"):
        look = {"color": FAMILIES[p["family"]], "marker": MARKERS[p["family"]], "markersize": _size(p["resident_bytes_frac"]), "linestyle": "none"}
        predicted, measured = p[f"{metric}_sim"] / unit, p[f"{metric}_engine"] / unit
        axis.errorbar(measured, p["exact_match_frac"], yerr=[[p["below"]], [p["above"]]], fmt="none", ecolor="#b0b0b0", elinewidth=0.5, capsize=1.2, capthick=0.5, zorder=1.3)
        axis.plot([predicted, measured], [p["exact_match_frac"]] * 2, color=look["color"], linewidth=0.8)
        axis.plot(measured, p["exact_match_frac"], markeredgewidth=0, alpha=0.85, **look)
        axis.plot(predicted, p["exact_match_frac"], markerfacecolor="none", markeredgewidth=0.9, **look)


def _scale(axis, points, metric, unit):
    values = points[[f"{metric}_sim", f"{metric}_engine"]].to_numpy() / unit
    if values.max() > _LOG_FROM * np.median(values):  # one slow policy would take most of the axis
        style.logarithmic(axis, "x", values.min(), values.max())
        axis.set_xlim(0.8 * values.min(), 1.4 * values.max())
    else:
        axis.set_xlim(left=0, right=1.25 * values.max())
        axis.xaxis.set_major_locator(MaxNLocator(nbins=5))


def _legend_of(points):
    """Handles and labels: filled and hollow, families, and the sizes of a tenth, a half and all of the bytes."""
    def mark(marker="o", size=5, **look):
        return style.plt.Line2D([], [], marker=marker, linestyle="none", color=look.pop("color", "#303030"), markersize=size, **look)

    families = list(dict.fromkeys(points["family"]))
    entries = [(mark(markeredgewidth=0), "measured in the engine"), (mark(markerfacecolor="none"), "predicted by the simulator")]
    entries += [(mark(MARKERS[f], color=FAMILIES[f], markeredgewidth=0), f) for f in families]
    entries += [(mark(size=_size(share), markerfacecolor="none", markeredgewidth=0.6), f"{100 * share:g} % of KV bytes") for share in (0.1, 0.5, 1)]
    return [h for h, _ in entries], [t for _, t in entries]


def draw(accuracy, serving, folder, every=False):
    """Yields (name, note) of the figure."""
    points, note = points_of(accuracy, serving)
    figure, axes = style.grid(NAME, 1, 2, style.PAGE_IN, 2.5, sharey=True)
    for axis, (metric, title) in zip(axes[0], METRICS):
        unit = 1000 if style.in_seconds(_most_ms(points, metric)) else 1
        _draw_points(axis, points, metric, unit)
        axis.set_xlabel(title.replace("(ms)", "(s)") if unit > 1 else title)
        _scale(axis, points, metric, unit)
    model = model_name(setting.run_model(accuracy.folder))
    axes[0, 0].set_ylabel("Right answers (mean over tasks)" + (f"\nof the model {model}" if model else ""))
    most = max((points["exact_match_frac"] + points["above"]).max(), 0.01)
    axes[0, 0].set_ylim(-0.04 * most, 1.08 * most)
    widest = max(len(shown(n, NAME)) for n in points["name"])
    axes[0, 1].annotate("M" * (widest * 4 // 5), (1.04, 0.5), xycoords="axes fraction", fontsize=6, alpha=0)  # room for the names
    printed = f"n = {points['num_answers'].min()} answers or more per task; bars are 95 % intervals. {sentence(note)}"
    yield style.save(figure, folder, NAME, *_legend_of(points), note=printed, place=lambda: _name_points(axes[0, 1], points)), note
