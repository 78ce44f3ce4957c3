"""The best settings of a sweep: by the quantity that a search found, else by goodput, else by output."""

import pandas as pd

from metrics import SEARCHED, is_cost, title_of

_OBJECTIVES = (*(column for column, _ in SEARCHED), "goodput_per_s", "output_tokens_per_s", "hit_frac")


def objective(summary):
    """The column that says how good a setting is; None: there is none."""
    return next((c for c in _OBJECTIVES if c in summary and summary[c].notna().any()), None)


def sentence(column):
    """'highest goodput (requests/s)'."""
    title = title_of(column)
    if column in dict(SEARCHED):
        return title[0].lower() + title[1:]
    return f"{'lowest' if is_cost(column) else 'highest'} {title[0].lower()}{title[1:]}"


def best_setting(summary, axes):
    """{axis: value} of the setting with the best mean over its runs, and the column that it is the best of; {} where nothing says how good one is."""
    column = objective(summary)
    if column is None or not axes:
        return {}, column
    means = summary.groupby(list(axes), sort=False)[column].mean().dropna()
    if means.empty:
        return {}, column
    at = means.idxmin() if is_cost(column) else means.idxmax()
    return dict(zip(axes, at if isinstance(at, tuple) else (at,))), column


def best_parts(results, parts, most):
    """The `most` best of these parts of the summary in their order, and a sentence that says so; all of them where they are few."""
    column = objective(results.summary)
    if len(parts) <= most or column is None:
        return parts, ""
    means = pd.Series([part[column].mean() for part in parts]).sort_values(ascending=is_cost(column), kind="stable")
    kept = sorted(means.index[:most])
    return [parts[i] for i in kept], f"{most} of {len(parts):,} settings, those with the {sentence(column)}; summary.csv has all."


def most_different(found, most, lines):
    """At most `most` of [(values, rows)], in their order: those whose lines differ most, by the share of the largest mean. `lines`: the axes
    that tell lines apart. None: nothing says how good a setting is, or all are alike."""
    if len(found) <= most:
        return found
    column = objective(pd.concat([rows for _, rows in found]))
    if column is None or not lines:
        return None
    spreads = []
    for _, rows in found:
        means = rows.groupby(list(lines), sort=False, dropna=False)[column].mean()
        spreads.append((means.max() - means.min()) / abs(means.max()) if means.max() else 0.0)
    spreads = pd.Series(spreads).fillna(0.0)
    if spreads.max() <= 0:
        return None
    kept = sorted(spreads.sort_values(ascending=False, kind="stable").index[:most])
    return [found[i] for i in kept]
