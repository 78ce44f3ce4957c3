"""Kept accuracy and gains in serving under KV policies: right answers or fidelity measured on one model, over simulated serving of another (docs/figures.md).

Joins a results folder of graded answers, or a replay, with a serving experiment on one host, by recipe and budget (budgets.py).
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.lines import Line2D

import accuracy
import budgets
import entries
import setting
import settings
import style
from families import FAMILIES
from marks import budgets_note, label_budgets
from fidelity import FRONT, choose, draw_front, draw_others, label_front, left_out_note, legend_of, looks_of, mass_scale, pareto
from groups import at_first, mean_and_interval, only_labels, others_of, seeds_note
from load import Unjoinable, value_text
from metrics import SEARCHED, is_cost, refuse_empty, title_of, usable
from names import model_name, shown
from policies import full_name

ACCURACY, FIDELITY = "accuracy_serving", "fidelity_serving"
_BEST, _HIGHEST, _LOWEST = "best", "highest", "lowest"  # the load at which a metric is taken
_MAX_NAMED = 6
_THIN = {"elinewidth": 0.4, "capsize": 1, "capthick": 0.4}
_LABEL_IN = 1.9  # width of a panel whose label has room for the model
_HOSTS = {"sim": "simulated", "engine": "measured"}


@dataclass(frozen=True)
class Metric:
    """A column of the serving experiment's summary.csv."""

    column: str
    title: str
    unit: str
    load: str
    more_is_better: bool


_OUTPUT = Metric("output_tokens_per_s", "Output", "tokens/s", _HIGHEST, True)


def _metric_of(column):
    """Times and costs are better where they are less, and are taken at the lowest load."""
    title, _, unit = title_of(column).rstrip(")").rpartition(" (")
    return Metric(column, title or unit, unit if title else "", _LOWEST if is_cost(column) else _BEST, not is_cost(column))


_GOODPUT = Metric("goodput_per_s", "Goodput within the SLO", "requests/s", _BEST, True)
_TPOT = Metric("tpot_mean_ms", "Mean time per output token", "ms", _LOWEST, False)


def _metrics(rows, name):
    """Those that the settings name, else the quantity found or goodput, output and time per token, where the runs have them."""
    wanted, known = settings.of(name).get("metric"), usable(rows)
    if wanted is None:
        found = [_metric_of(column) for column, _ in SEARCHED if column in known]
        return [m for m in (*(found or [_GOODPUT]), _OUTPUT, _TPOT) if m.column in known]
    for column in wanted:
        refuse_empty(f"figures.{name}.metric", column, rows)
        settings.one_of(f"figures.{name}.metric", column, known)
    return [_metric_of(c) for c in wanted]


# ---- the two folders' rows ----


def _model_of(results):
    """The model of all runs, of the samples of a replay, or what to write where the folder names none."""
    model = model_name(setting.run_model(results.folder) or setting.sample_model(results.folder))
    return model or f"a model that {results.folder.name} does not name"


def told(results):
    """'llama-3.1-8b on RTX 4090'"""
    hardware = setting.run_hardware(results.folder)
    return f"{_model_of(results)}{f' on {hardware}' if hardware else ''}"


def _graded(results):
    """A row per policy and budget: `kept`, how far its interval reaches `below` and `above`, `n`, family. And the values of other axes."""
    rows, asked = at_first(results.summary, others_of(results.summary, results.axes))
    rows = budgets.with_fixed_parts(rows, results.folder)
    if results.is_accuracy:
        found = accuracy.points_of(rows).rename(columns={"name": "policy", "exact_match_frac": "kept", "num_answers": "n"})
        return found[["policy", "budget", "kept", "below", "above", "n", "family"]], asked
    grouped = rows.groupby(["policy", "budget"], sort=False)
    found = grouped.agg(kept=("attention_mass", "mean"), n=("samples", "min"), family=("family", "first")).reset_index()
    return found.assign(below=0.0, above=0.0), asked


def _at_load(rows, axis, metric):
    """Mean of the metric, half of its interval and the load, at the load that it is taken at."""
    if axis is None:
        return (*mean_and_interval(rows[metric.column])[:2], None)
    by_load = [(load, *mean_and_interval(part[metric.column])[:2]) for load, part in rows.groupby(axis)]
    by_load = [row for row in by_load if np.isfinite(row[1])]
    if not by_load:
        return np.nan, 0.0, None
    ends = {_LOWEST: by_load[0], _HIGHEST: by_load[-1], _BEST: (max if metric.more_is_better else min)(by_load, key=lambda row: row[1])}
    load, mean, half = ends[metric.load]
    return mean, half, load


def _served(results, metrics):
    """A row per policy and budget: the metrics, `COLUMN_half`; and the values of other axes drawn."""
    axis = results.rate_axis() or next((a for a in results.axes if a == "load_frac"), None)
    axis = axis if axis is not None and results.summary[axis].nunique() > 1 else None
    others = [a for a in others_of(results.summary, results.axes) if a != axis]
    rows, drawn = at_first(results.summary, others)
    rows = budgets.with_fixed_parts(rows, results.folder)
    points = []
    for (policy, budget), own in rows.groupby(["policy", "budget"], sort=False):
        point = {"policy": policy, "budget": budget}
        for metric in metrics:
            point[metric.column], point[f"{metric.column}_half"], _ = _at_load(own, axis, metric)
        points.append(point)
    parts = [part for _, part in rows.groupby(["policy", "budget", *([axis] if axis else [])], sort=False)]
    return pd.DataFrame(points), drawn, axis, seeds_note(parts)


def _prompt_tokens(results):
    """Mean prompt length; None where the folder does not say."""
    if results.requests is not None and "prompt_tokens" in results.requests and len(results.requests):
        return float(results.requests["prompt_tokens"].mean())
    if not {"budget_tokens", "budget"} <= set(results.summary.columns):
        return None
    whole = results.summary.loc[results.summary["budget"] == "", "budget_tokens"]  # of recipes without a budget: the prompt's length
    if len(whole):
        return float(whole.mean())
    return float(results.summary["length"].mean()) if "length" in results.summary else None


@dataclass
class Joined:
    """`points`: a row per policy and budget that both folders have, by `name`; `notes`: what the figure has to say."""

    points: pd.DataFrame
    metrics: list
    load: str
    notes: list


def _names(rows):
    return [full_name(p, b) for p, b in zip(rows["policy"], rows["budget"])]


def _list(names, figure):
    text = ", ".join(shown(n, figure) for n in names[:_MAX_NAMED])
    return text + (f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else "")


def _word(figure):
    return "graded" if figure == ACCURACY else "replayed"


def _shares_note(same, prompts, figure):
    """The share of both folders' prompts that one budget in tokens keeps; "" for several budgets, or where it is not known."""
    if len(same) > 1 or not same[0].startswith("budget_tokens") or not all(prompts):
        return ""
    kept, served = (100 * budgets.share_of(same[0], tokens) for tokens in prompts)
    return f", {kept:.3g} % of the {_word(figure)} prompts and {served:.3g} % of those served"


def _budget_note(found, prompts, figure):
    """The rule of the join, and what the budgets are of both prompts."""
    crossed = [f"{shown(m.policy, figure)}: {m.how}" for m in found if m.how]
    same = sorted({m.left for m in found if m.left and not m.how}, key=lambda b: float(b.split()[1]))
    notes = []
    if same:
        texts = [f"{b.split()[1]} tokens" if b.startswith("budget_tokens") else b for b in same]
        notes.append(f"Joined by recipe and equal budget: {', '.join(texts)}{_shares_note(same, prompts, figure)}.")
    if crossed:
        text = "; ".join(crossed[:_MAX_NAMED]) + (f" and {len(crossed) - _MAX_NAMED} more" if len(crossed) > _MAX_NAMED else "")
        notes.append(f"Joined by the share of the prompt, within 10 %: {text}.")
    return notes


def _only_note(graded, served, found, figure):
    kept = {(m.policy, m.left) for m in found}, {(m.policy, m.right) for m in found}
    notes = []
    for word, rows, used in ((_word(figure), graded, kept[0]), ("served", served, kept[1])):
        names = [full_name(p, b) for p, b in zip(rows["policy"], rows["budget"]) if (p, b) not in used]
        notes += [f"Only {word}: {_list(names, figure)}."] if names else []
    places = list(dict.fromkeys(p for rows in (graded, served) for p in rows["policy"] if entries.has_place(p)))
    return notes + ([f"Not joined, since results do not say how they differ: {_list(places, figure)}."] if places else [])


def _drawn_note(word, values, figure):
    """The values of other axes that are drawn, {axis: value}."""
    texts = [value_text(v) if isinstance(v, str) else f"{a.split('.')[-1]} {value_text(v)}" for a, v in values.items()]
    return [f"{word} at {', '.join(shown(text, figure) for text in texts)}."] if texts else []


def _points(found, graded, served):
    """The rows of both folders that were matched, in the order of families."""
    pairs = pd.DataFrame([(m.policy, m.left, m.right) for m in found], columns=["policy", "budget", "budget_served"])
    served = served.rename(columns={"budget": "budget_served"})
    points = pairs.merge(graded, on=["policy", "budget"]).merge(served, on=["policy", "budget_served"])
    points = points.assign(name=points["policy"], host_bytes_frac=0.0, disk_bytes_frac=0.0)
    return points.sort_values("family", key=lambda f: f.map(list(FAMILIES).index), kind="stable", ignore_index=True)


def _with_numbers(points, metrics, serving):
    """The points that have every metric, and a note on the others: a search may find nothing. Unjoinable: none has them."""
    lost = points[[m.column for m in metrics]].isna().any(axis=1)
    if lost.all():
        raise Unjoinable(f"{serving.folder} has no policy with a number in each of {', '.join(m.column for m in metrics)}")
    without = ", ".join(shown(n) for n in _names(points[lost]))
    return points[~lost].reset_index(drop=True), [f"No number of {' or '.join(m.title[0].lower() + m.title[1:] for m in metrics)}: {without}."] if lost.any() else []


def joined(quality, serving, name):
    """Raises Unjoinable where the folders have no policy and budget in common."""
    metrics = _metrics(serving.summary, name)
    if not metrics:
        raise Unjoinable(f"{serving.folder} has none of {', '.join(m.column for m in (_GOODPUT, _OUTPUT, _TPOT))}")
    graded, asked = _graded(quality)
    served, drawn, axis, seeds = _served(serving, metrics)
    prompts = _prompt_tokens(quality), _prompt_tokens(serving)
    keys = [list(zip(rows["policy"], rows["budget"])) for rows in (graded, served)]
    found = budgets.matches(*keys, prompts, settings.of(name).get("join_by", "budget"))
    if not found:
        kept, run = ", ".join(_names(graded)), ", ".join(_names(served))
        raise Unjoinable(f"no KV policy is in both folders, by recipe and budget: {quality.folder} has {kept}; {serving.folder} serves {run}")
    points, lost = _with_numbers(_points(found, graded, served), metrics, serving)
    notes = [*lost, *_budget_note(found, prompts, name), f"Serving: {seeds}" if seeds else "", *_only_note(graded, served, found, name)]
    notes += [*_drawn_note("Answers" if quality.is_accuracy else "Replay", asked, name), *_drawn_note("Served", drawn, name)]
    return Joined(points, metrics, axis, [n for n in notes if n])


# ---- the figure ----


def _front(points, metric):
    x = points[metric.column].to_numpy()
    return points.iloc[pareto((-x if metric.more_is_better else x).tolist(), points["kept"].tolist())]


def _draw_panel(axis, points, looks, others, metric, line):
    column = metric.column
    draw_others(axis, points, others, column, "kept")
    for policy, rows in points[points["name"].isin(looks)].groupby("name", sort=False):
        rows = rows.sort_values("kept", kind="stable")
        axis.plot(rows[column], rows["kept"], linestyle="-", linewidth=0.6, alpha=0.9, markersize=4.5, markeredgewidth=0, **looks[policy])
        bars = {"fmt": "none", "ecolor": looks[policy]["color"], "alpha": 0.5, "zorder": 1.3, **_THIN}
        for which, half in (("yerr", rows[["below", "above"]].to_numpy().T), ("xerr", rows[f"{column}_half"].to_numpy())):
            if (half > 0).any():
                axis.errorbar(rows[column], rows["kept"], **{which: half}, **bars)
    draw_front(axis, line, column, "kept")
    low, high = (points[column] - points[f"{column}_half"]).min(), (points[column] + points[f"{column}_half"]).max()
    room = 0.15 * (high - low) or 0.1 * high or 1  # names of points have room beside the data
    axis.set_xlim(max(0, low - room), high + room)
    if not metric.more_is_better:
        axis.invert_xaxis()  # the best corner is the upper right one in every panel


def y_title(quality):
    """The label of what is kept, with the model that it is of."""
    if quality.is_accuracy:
        return f"Right answers (mean over tasks)\nof the model {_model_of(quality)}"
    return f"Attention mass kept (share)\nin replay of the model {_model_of(quality)}"


def x_title(metric, load):
    """The name of a metric, the load that it is taken at, and its unit. `load`: the axis of loads, or None where there is one load."""
    inside = [f"at the {metric.load} load"] if load else []
    inside += [metric.unit] if metric.unit else []
    inside += [] if metric.more_is_better else ["reversed"]
    return f"{metric.title} ({', '.join(inside)})" if inside else metric.title


def _simulated(serving):
    return f"{_HOSTS.get(serving.host, 'served')}: {told(serving)}"


def _names_model(name, num_metrics):
    """True where the labels of the panels have room for the model; else the note names it."""
    return style.width_of(name, _width_in(num_metrics)) / num_metrics >= _LABEL_IN


def _width_in(num_metrics):
    return style.PAGE_IN if num_metrics > 1 else style.COLUMN_IN


def _label_axes(axes, found, quality, serving, name):
    axes[0].set_ylabel(y_title(quality))
    if quality.is_accuracy:
        most = max((found.points["kept"] + found.points["above"]).max(), 0.01)
        axes[0].set_ylim(-0.04 * most, 1.08 * most)
    else:
        for axis in axes:
            mass_scale(axis, found.points["kept"].min(), found.points["kept"].max())
    for axis, metric in zip(axes, found.metrics):
        title = x_title(metric, found.load)
        axis.set_xlabel(f"{title}\n{_simulated(serving)}" if _names_model(name, len(axes)) else title)


def _source_note(quality, serving):
    """Says that the halves of the figure are of two models."""
    one, other = _model_of(quality), _model_of(serving)
    if one == other:
        return ""
    return f"Two models: {other} was served, and nothing was {'graded' if quality.is_accuracy else 'replayed'} on it."


def notes_of(found, quality, serving):
    """Sentences below the figure: whose numbers these are, n, the rule of the join, and what is in one folder only."""
    what = "answers or more per task; bars are 95 % intervals" if quality.is_accuracy else "samples or more"
    return [text for text in (_source_note(quality, serving), f"n = {found.points['n'].min():g} {what}.", *found.notes) if text]


def name_of(quality):
    return ACCURACY if quality.is_accuracy else FIDELITY


def _notes(found, quality, serving, name, others):
    at = "" if _names_model(name, len(found.metrics)) else f"{_simulated(serving)[0].upper()}{_simulated(serving)[1:]}."
    return " ".join(filter(None, (at, *notes_of(found, quality, serving), budgets_note(found.points), left_out_note(others, name))))


def draw(quality, serving, folder, every=False):
    """Yields (name, note) of the figure. `quality`: graded answers or a replay; `serving`: runs on one host."""
    name = name_of(quality)
    found = joined(quality, serving, name)
    points = found.points[found.points["name"].isin(only_labels(found.points["name"].unique(), name))].reset_index(drop=True)
    figure, grid = style.grid(name, 1, len(found.metrics), _width_in(len(found.metrics)), 2.8, sharey=True)
    axes = list(grid[0])
    lines = [_front(points, metric) for metric in found.metrics]
    chosen, others = choose(points, [line["name"] for line in lines], name, every)
    coloured = points[points["name"].isin(chosen)]
    looks = looks_of(coloured)
    for axis, metric, line in zip(axes, found.metrics, lines):
        _draw_panel(axis, points, looks, others, metric, line)
    _label_axes(axes, found, quality, serving, name)

    def place():
        for axis, metric, line in zip(axes, found.metrics, lines):
            label_front(axis, points, line[line["name"].isin(chosen)], metric.column, "kept", -1, name)
            label_budgets(axis, coloured, metric.column, "kept")

    legend = legend_of(coloured, looks, name, [(Line2D([], [], **FRONT), "Pareto front")])
    yield style.save(figure, folder, name, *legend, note=_notes(found, quality, serving, name, others), place=place), " ".join(found.notes)
