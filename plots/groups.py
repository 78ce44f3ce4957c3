"""The content of one figure: which lines, how runs are averaged over seeds, which value of a long sweep."""

import math
from dataclasses import dataclass, field

import pandas as pd

import best
import settings
from load import ResultsError, is_numeric, label_of, slug, value_text
from names import shown
from policies import is_policy_axis
from style import MAX_LINES

MAX_VIEWS = 4
MAX_SETTINGS = 12  # of several numeric axes: with more of them the best is drawn
_MAX_PANELS = 6
_MAX_NAMED = 12  # lines left out that a figure names

# Two-sided 95 % quantiles of Student's t for 1 to 30 degrees of freedom.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


def t95(degrees):
    """Past the table the expansion in 1/degrees (Abramowitz and Stegun 26.7.5), good to four digits there."""
    if degrees <= len(_T95):
        return _T95[degrees - 1]
    z = 1.959964
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)


def mean_and_interval(values):
    """Mean, half width of its 95 % t-interval (0: there is none, for a single value or equal ones) and n; empty values do not count."""
    values = pd.Series(values, dtype=float).dropna()
    n = len(values)
    if n == 0:
        return math.nan, 0.0, 0
    varies = n > 1 and values.nunique() > 1
    half = t95(n - 1) * values.std(ddof=1) / math.sqrt(n) if varies else 0.0
    return values.mean(), half, n


def num_seeds(rows):
    """Runs of one combination that say something of their own: 1 where the seed changes nothing in any of them."""
    differs = any(rows[c].nunique(dropna=False) > 1 for c in rows.columns if c not in ("run", "seed")) if len(rows) > 1 else False
    return len(rows) if differs else min(1, len(rows))


def seeds_note(parts):
    """The meaning of a figure's intervals, for its note; "" where there are none. `parts`: the rows of each of its marks."""
    counts = [n for n in map(num_seeds, parts) if n > 0]
    several = [n for n in counts if n > 1]
    if not several:
        return "n = 1 seed, no interval." if counts else ""
    low, high = min(several), max(several)
    text = f"Mean and 95 % t-interval over n = {high if low == high else f'{low} to {high}'} seeds"
    return text + ("; without an interval n = 1." if min(counts) == 1 else ".")


def wilson(right, answers):
    """95 % score interval of a share (Wilson 1927)."""
    z = 1.959964
    share, wider = right / answers, 1 + z * z / answers
    middle, half = (share + z * z / (2 * answers)) / wider, z / wider * math.sqrt(share * (1 - share) / answers + z * z / (4 * answers**2))
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass
class View:
    """One figure of a kind: `lines` are (label, rows of the summary); the figure prints their labels with names.shown()."""

    suffix: str
    lines: list
    name: str = ""  # of the figure, without the suffix
    note: str = ""
    title: str = ""  # values of the axes that were split off
    left_out: tuple = ()  # labels of the lines that were cut
    source: str = ""
    panels: list = field(default_factory=list)  # (title, lines) of each; empty: all lines in one panel
    axis: str = ""  # of which the labels are bare numbers, see number_axis()

    @property
    def figure(self):
        return self.name + self.suffix

    def shown(self, label):
        return shown(label, self.figure, self.axis)

    def footnote(self, *more):
        """The figure's note: which lines are not in it, where its numbers are from, and what else is to be said."""
        names = f"Not drawn: {', '.join(map(self.shown, self.left_out[:_MAX_NAMED]))}" if self.left_out else ""
        if len(self.left_out) > _MAX_NAMED:
            names += f" and {len(self.left_out) - _MAX_NAMED} more"
        return " ".join(filter(None, (*more, names and f"{names} (--all draws them).", self.source)))


def axis_named(axes, name, place):
    """The axis of which `name` is the path or its end. ResultsError: none, or several."""
    found = [a for a in axes if a == name] or [a for a in axes if a.endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    raise ResultsError(f"{place}: {'several axes are called' if found else 'no axis'} '{name}'; axes: {', '.join(axes)}")


def _rows_of_axis(rows, axis, wanted, place):
    texts = rows[axis].map(lambda v: "" if isinstance(v, float) and math.isnan(v) else value_text(v))
    for one in wanted:
        settings.one_of(place, one, [t for t in texts.unique() if t])
    return rows[texts.isin([*wanted, ""])]


def only_labels(labels, figure, axis=""):
    """Those of the labels that `only` names, by id or by name and in its order; all where it does not. ResultsError: a label that is not there.
    `axis`: of labels that are bare numbers, see number_axis()."""
    wanted = settings.of(figure).get("only")
    if not isinstance(wanted, list):
        return list(labels)
    of = {shown(label, figure, axis): label for label in labels} | {label: label for label in labels}
    return [of[settings.one_of(f"figures.{figure}.only", one, list(of))] for one in wanted]


def only_lines(rows, lines, axes, figure, axis=""):
    """The lines that the settings leave in a figure. `axes`: of the results; `axis`: of labels that are bare numbers, see number_axis()."""
    wanted = settings.of(figure).get("only")
    if isinstance(wanted, dict):
        for name, values in wanted.items():
            rows = _rows_of_axis(rows, axis_named(axes, name, f"figures.{figure}.only"), values, f"figures.{figure}.only.{name}")
        lines = [(text, part[part.index.isin(rows.index)]) for text, part in lines]
        return [(text, part) for text, part in lines if len(part)]
    parts = dict(lines)
    return [(label, parts[label]) for label in only_labels(parts, figure, axis)]


def spread_evenly(items, most):
    """At most `most` of the items, evenly spaced, first and last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def lines_of(rows, axes, name):
    """(text, rows) per combination of the axes; seeds of one combination stay together."""
    varying = [a for a in axes if rows[a].nunique(dropna=False) > 1] or axes[:1]
    texts = [label_of(r, varying, len(varying) == 1) or name for r in rows.to_dict("records")]
    return [(text, part) for text, part in rows.groupby(pd.Series(texts, index=rows.index, dtype=object), sort=False)]


def number_axis(rows, axes):
    """The last part of the axis whose numbers are the labels of lines_of(); "" where labels name their axes or are texts."""
    varying = [a for a in axes if rows[a].nunique(dropna=False) > 1] or axes[:1]
    return varying[0].split(".")[-1] if len(varying) == 1 and is_numeric(rows[varying[0]]) else ""


def combinations(rows, axes):
    """(values, rows) per combination of the axes; all rows in one where there are no axes."""
    if not axes:
        return [((), rows)]
    found = rows.groupby(axes if len(axes) > 1 else axes[0], sort=False, dropna=False)
    return [(values if isinstance(values, tuple) else (values,), part) for values, part in found]


def others_of(rows, axes):
    """Axes that vary and are not the KV policy's: a model, or how it is asked."""
    return [a for a in axes if not is_policy_axis(a) and rows[a].nunique(dropna=False) > 1]


def at_first(rows, axes):
    """The rows at the first value of each axis, and these values; NaN, where a run does not have the axis, is one."""
    chosen = {}
    for axis in axes:
        value = rows[axis].iloc[0]
        rows = rows[rows[axis].isna() if pd.isna(value) else rows[axis] == value]
        if not pd.isna(value):
            chosen[axis] = value
    return rows, chosen


def policy_names(rows, axes):
    """For each row its policy, and the values of other axes that vary."""
    others = others_of(rows, axes)
    return [", ".join(filter(None, (row["policy"], label_of(row, others, False)))) for row in rows.to_dict("records")]


def parts_of(rows, axes, every=False):
    """(end of the file name, rows, note) per combination of the axes that are not the KV policy's; a few of them, or all with `every`."""
    others = others_of(rows, axes)
    if not others:
        return [("", rows, "")]
    found = combinations(rows, others)
    kept = found if every else spread_evenly(found, MAX_VIEWS)
    cut = f"; {len(kept)} of {len(found)} values of {', '.join(others)} drawn" if len(kept) < len(found) else ""
    parts = []
    for _, part in kept:
        here = [(a, value_text(part[a].iloc[0])) for a in others if not pd.isna(part[a].iloc[0])]
        suffix = "".join(f"_{slug(a.split('.')[-1])}_{slug(text).strip('._')}" for a, text in here)
        parts.append((suffix, part, ", ".join(f"{a} {text}" for a, text in here) + cut))
    return parts


def budgets_of(points):
    """Budgets that are given, in ascending order, and the place of the one to draw: in the middle of those that most policies have."""
    given = points[points["budget"] != ""]
    found = sorted(given["budget"].unique(), key=lambda b: (b.split()[0], float(b.split()[1])))
    counts = [given.loc[given["budget"] == b, "name"].nunique() for b in found]
    common = [i for i, n in enumerate(counts) if n == max(counts)]
    return found, common[(len(common) - 1) // 2] if common else 0


def sentence(note):
    """A note as it is printed in a figure."""
    return f"{note[0].upper()}{note[1:]}." if note else ""


def at_budgets(points, every):
    """(end of the file name, points, note) for the budget to draw, or each: with the points that have none. No budgets: all in one."""
    budgets, middle = budgets_of(points)
    if not budgets:
        yield "", points, ""
    for budget in budgets if every else budgets[middle : middle + 1]:
        chosen = points[points["budget"].isin((budget, ""))]
        key, value = budget.split()
        text = f"budget of {value} tokens" if key == "budget_tokens" else budget.replace("_", " ")
        notes = [text if every else f"{text}, 1 of {len(budgets)} drawn"] if len(budgets) > 1 else []
        missing = [n for n in points["name"].unique() if n not in set(chosen["name"])]
        notes += [f"without {', '.join(missing)}, which {'has' if len(missing) == 1 else 'have'} other budgets"] if missing else []
        yield f"_{slug(budget)}", chosen, "; ".join(notes)


def cut_lines(view, every, most):
    kept = view.lines if every else spread_evenly(view.lines, most)
    if len(kept) < len(view.lines):
        view.note = f"{len(kept)} of {len(view.lines)} lines drawn"
        texts = {text for text, _ in kept}
        view.left_out = tuple(text for text, _ in view.lines if text not in texts)
    view.lines = kept
    return view


def _split_axes(results, without):
    """All axes but `without`; of these the numeric ones and the others, where they vary."""
    axes = [a for a in results.axes if a != without]
    numeric = [a for a in axes if is_numeric(results.summary[a]) and results.summary[a].nunique() > 1]
    return axes, numeric, [a for a in axes if a not in numeric and results.summary[a].nunique() > 1]


def _titled(axes, values):
    """[('rate_per_s', '2')] and 'rate_per_s 2'; an axis that a run does not have is left out."""
    named = [(a.split(".")[-1], value_text(v)) for a, v in zip(axes, values) if not pd.isna(v)]
    return named, ", ".join(f"{name} {value}" for name, value in named)


def _chosen(found, most, numeric, text, every):
    """The combinations of numeric axes to draw, and a note on the others: those at which lines differ most, else evenly spaced ones."""
    if every or len(found) <= most:
        return found, ""
    kept, of = best.most_different(found, most, text), f" of {len(found)} values of {', '.join(numeric)} drawn"
    return (spread_evenly(found, most), f"{most}{of}") if kept is None else (kept, f"{most}{of}, where lines differ most")


def _best_slice(rows, axes, numeric, swept):
    """The rows of the best setting along the numeric axes (all but the first, where no other axis is left for lines), and a note. `swept`: with
    the axis that a figure has on x."""
    fixed = numeric if len(axes) > len(numeric) else numeric[1:]
    setting, column = best.best_setting(rows, swept)
    setting = {a: v for a, v in setting.items() if a in fixed}
    for axis, value in setting.items():
        rows = rows[rows[axis] == value]
    told = ", ".join(f"{a.split('.')[-1]} {value_text(v)}" for a, v in setting.items())
    note = f"one value of {', '.join(fixed)}, at the {best.sentence(column)}: {told}" if setting else ""
    return rows, note, told


def _sliced(results, name, axes, numeric, rows, every, most):
    """A view of the best setting of a sweep with several numeric axes; figure `settings` (sweep_map.py) has the others. `numeric`: the axes
    without and with the one on x."""
    kept, note, told = _best_slice(rows, [a for a in axes if rows[a].nunique(dropna=False) > 1], *numeric)
    left = [a for a in axes if kept[a].nunique(dropna=False) > 1] or axes[:1]
    axis = number_axis(kept, left)
    view = cut_lines(View("", lines_of(kept, left, results.name), name, source=results.source, axis=axis), every, most)
    view.note, view.title = "; ".join(filter(None, (view.note, note))), shown(told, name) if told else ""
    return view


def views(results, name, without=None, every=False, most=MAX_LINES):
    """One view where the lines fit into it; else one per combination of the numeric axes, a few of them, or all with `every`; of several numeric
    axes with many combinations the best one. `name`: of the figure; `without`: an axis that it already has on x; `most`: lines of one view."""
    axes, numeric, text = _split_axes(results, without)
    rows, own = results.summary, settings.of(name).get("max_lines")
    axis = number_axis(rows, axes)
    swept = numeric + ([without] if without is not None and rows[without].nunique() > 1 else [])
    has_few = len(rows[axes].drop_duplicates()) <= (own or MAX_LINES) if axes else True
    if len(swept) > 1 and not every and not has_few and _num_settings(rows, swept) > MAX_SETTINGS:
        chosen = only_lines(rows, [("", rows)], results.axes, name) if isinstance(settings.of(name).get("only"), dict) else [("", rows)]
        return [_sliced(results, name, axes, (numeric, swept), chosen[0][1], every, own or most)] if chosen else []
    whole = View("", only_lines(rows, lines_of(rows, axes, results.name), results.axes, name, axis), name, source=results.source, axis=axis)
    if len(whole.lines) <= (own or MAX_LINES) or not numeric or not text:
        return [cut_lines(whole, every, own or most)]
    found = combinations(pd.concat([part for _, part in whole.lines]).sort_index(), numeric)
    kept, note = _chosen(found, MAX_VIEWS, numeric, text, every)
    result = []
    for values, part in kept:
        named, title = _titled(numeric, values)
        suffix = "".join(f"_{slug(axis)}_{slug(value)}" for axis, value in named)
        view = cut_lines(View(suffix, lines_of(part, text, results.name), name, title=shown(title, name), source=results.source), every, own or most)
        view.note = view.note or note
        result.append(view)
    return result


def _num_settings(rows, numeric):
    return len(rows[numeric].drop_duplicates())


def panelled(results, name, every=False, together=_MAX_PANELS):
    """A view whose panels are the values of the numeric axes, six of them or all with `every`, where there are more lines than `together`."""
    axes, numeric, text = _split_axes(results, None)
    rows = results.summary
    if len(numeric) > 1 and not every and _num_settings(rows, numeric) > MAX_SETTINGS:
        return views(results, name, every=every)
    lines = only_lines(rows, lines_of(rows, axes, results.name), results.axes, name, number_axis(rows, axes))
    if len(lines) <= together or not numeric or not text:
        return views(results, name, every=every)
    found = combinations(pd.concat([part for _, part in lines]).sort_index(), numeric)
    kept, note = _chosen(found, _MAX_PANELS, numeric, text, every)
    view = View("", lines_of(rows, text, results.name), name, source=results.source)
    view = cut_lines(view, every, settings.of(name).get("max_lines", MAX_LINES))
    texts = [label for label, _ in view.lines]
    for values, part in kept:
        parts = dict(lines_of(part, text, results.name))
        view.panels.append((shown(_titled(numeric, values)[1], name), [(t, parts[t]) for t in texts if t in parts]))
    view.note = "; ".join(filter(None, (view.note, note)))
    return [view]
