"""Figures that two results have together: graded answers or a replay beside serving (plots/joint.py), for every metric of the figure."""

import frontier
import joint
import joint_serving
import naming
import setting
import settings
from errors import Unjoinable
from families import FAMILIES, MARKERS
from names import model_name
from spec import axis, figure, numbers, option, symbol

_HOSTS = (("engine", "measured", ""), ("sim", "predicted", "-open"))


def _marks(rows, x, y, label, below, above, half=None, hollow="", suffix=""):
    """A trace per family: points with the intervals of the answers, and of the metric where `half` names its column."""
    traces = []
    for family, own in rows.groupby("family", sort=False):
        trace = {
            "type": "scatter",
            "mode": "markers",
            "name": f"{family}{suffix}",
            "legendgroup": family,
            "x": numbers(own[x]),
            "y": numbers(own[y]),
            "text": naming.named(own[label]),
            "marker": {"color": FAMILIES[family], "symbol": symbol(MARKERS[family]) + hollow, "size": 8},
            "hovertemplate": "%{text}: %{x:.4~g}, %{y:.3~g}<extra>%{fullData.name}</extra>",
        }
        if own[above].max() > 0 or own[below].max() > 0:
            reach = {"array": numbers(own[above]), "arrayminus": numbers(own[below]), "symmetric": False}
            trace["error_y"] = {"type": "data", "thickness": 0.7, "width": 2, **reach}
        if half and own[half].max() > 0:
            trace["error_x"] = {"type": "data", "thickness": 0.7, "width": 2, "array": numbers(own[half])}
        traces.append(trace)
    return traces


def _frontier(graded, served):
    points, note = frontier.points_of(graded, served)
    model = model_name(setting.run_model(graded.folder))
    y = axis("Right answers" + (f" of the model {model}" if model else ""), rangemode="tozero")
    options = []
    for metric, title in frontier.METRICS:
        traces = []
        for host, word, hollow in _HOSTS:
            column = f"{metric}_{host}"
            traces += _marks(points, column, "exact_match_frac", "name", "below", "above", hollow=hollow, suffix=f", {word}")
        told = f"n = {points['num_answers'].min()} answers or more per task. {note}"
        options.append(option(traces, axis(title, rangemode="tozero"), y, title, told))
    return figure(frontier.NAME, "Right answers and time, predicted and measured", options, "time", is_wide=True)


def _serving(quality, served):
    name = joint_serving.name_of(quality)
    found = joint_serving.joined(quality, served, name)
    points = found.points.assign(label=[f"{p} {b}".strip() for p, b in zip(found.points["policy"], found.points["budget"])])
    y = axis(joint_serving.y_title(quality).replace("\n", " "))
    options = [
        option(
            _marks(points, m.column, "kept", "label", "below", "above", half=f"{m.column}_half"),
            axis(f"{joint_serving.x_title(m, found.load)}, {joint_serving.told(served)}", rangemode="tozero"),
            y,
            m.title,
            " ".join(joint_serving.notes_of(found, quality, served)),
        )
        for m in found.metrics
    ]
    return figure(name, "What KV policies keep, and what serving gains", options, "metric", is_wide=True)


def figures_of(everything):
    """(figures, remarks) of two results; ([], []) of one. A remark says why there is no figure where one could be expected."""
    if len(everything) < 2:
        return [], []
    served = [r for r in everything if joint.is_served(r)]
    if len(served) != 1:
        return [], []
    settings.start(served[0].folder)
    try:
        pairs = joint.pairs_of(everything)
        with settings.entries_shown():
            return [_frontier(q, s) if draw is frontier.draw else _serving(q, s) for draw, q, s in pairs], []
    except Unjoinable as error:
        return [], [f"a figure of both results: {error}"]
