"""Two results side by side."""

from __future__ import annotations

from os import PathLike, fspath

import pandas as pd

from kvlab import _kvlab
from kvlab.results import Results

_COLUMNS = ["configuration", "metric", "pairs", "a", "b", "difference", "half_width"]


def _folder(results: Results | str | PathLike[str]) -> str:
    return str(results.path) if isinstance(results, Results) else fspath(results)


def compare(a: Results | str | PathLike[str], b: Results | str | PathLike[str], every: bool = False) -> pd.DataFrame:
    """Differences of two results, as `kvlab compare A B` computes them: runs are paired by the axes that both have and by seed.

    every: all numeric columns of summary.csv instead of the main metrics.
    Returns a row per configuration and metric: pairs (number of seeds), means a and b, difference b - a, relative_frac (of a), and the
    95 % t-interval of the difference over seeds, ci95_low and ci95_high (missing for one seed).
    InputError: a folder has no summary, or its runs match none or several of the other's."""
    rows = pd.DataFrame(_kvlab.compared(_folder(a), _folder(b), every), columns=_COLUMNS)
    half = pd.to_numeric(rows.pop("half_width"))
    rows["configuration"] = rows["configuration"].str.strip()
    rows["relative_frac"] = rows["difference"] / rows["a"].where(rows["a"] != 0)
    return rows.assign(ci95_low=rows["difference"] - half, ci95_high=rows["difference"] + half)
