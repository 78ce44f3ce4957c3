"""Published figures and ours (kvlab reproduce --out): a row per claim, two columns of rows, on one logarithmic axis."""

import matplotlib.pyplot as plt
import numpy as np

import style

_ROW_IN = 0.115
VERDICTS = ("reproduced", "direction", "not_reproduced")
LABELS = ("reproduced", "direction only", "not reproduced")
# Lightness and marker tell them apart, too.
LOOKS = ({"color": "#1f5fa8", "marker": "o"}, {"color": "#d08a00", "marker": "D"}, {"color": "#1b1b3a", "marker": "X"})
_PUBLISHED = {"color": "#606060", "marker": "|", "markersize": 6, "markeredgewidth": 1.2, "linestyle": "none"}


def name_of(row):
    unit = "" if row["unit"] == "x" else f" ({row['unit']})"
    return row["name"].replace("_", " ") + unit


def _rows(axis, claims):
    """Draws claims from above: the published figure or range, ours, and a line from one to the other."""
    for at, (_, row) in enumerate(claims.iterrows()):
        look = LOOKS[VERDICTS.index(row["verdict"])]
        nearest = min(max(row["ours"], row["published"]), row["published_to"])
        axis.plot([nearest, row["ours"]], [at, at], color=look["color"], linewidth=0.8)
        axis.plot([row["published"], row["published_to"]], [at, at], color=_PUBLISHED["color"], linewidth=2.2, solid_capstyle="butt", alpha=0.5)
        axis.plot([row["published"], row["published_to"]], [at, at], **_PUBLISHED)
        axis.plot(row["ours"], at, linestyle="none", markersize=3.2, markeredgewidth=0, **look)
    axis.axvline(1, color="#808080", linewidth=0.6, zorder=0.5)
    axis.set_yticks(range(len(claims)), [name_of(row) for _, row in claims.iterrows()], fontsize=5.5)
    axis.tick_params(axis="y", length=0)
    axis.set_xlabel("Figure: a ratio, or in the unit named")


def draw(results, folder, every=False):
    results.need("claims", ["name", "unit", "published", "published_to", "ours", "verdict"], "the figure of claims")
    claims = results.claims[results.claims["verdict"].isin(VERDICTS)]
    if claims.empty:
        return
    halves = np.array_split(np.arange(len(claims)), 2 if len(claims) > 12 else 1)
    figure, axes = style.grid("claims", 1, len(halves), style.PAGE_IN, 0.4 + _ROW_IN * len(halves[0]))
    values = claims[["published", "published_to", "ours"]].to_numpy()
    low, high = 0.8 * values[values > 0].min(), 1.25 * values.max()
    for axis, half in zip(axes[0], halves):
        _rows(axis, claims.iloc[half])
        axis.set_ylim(len(halves[0]) - 0.4, -0.6)
        axis.set_xlim(low, high)
        style.logarithmic(axis, "x", low, high, dense_below=100)
    handles = [plt.Line2D([], [], **_PUBLISHED)] + [plt.Line2D([], [], linestyle="none", markersize=3.2, markeredgewidth=0, **look) for look in LOOKS]
    counts = [int((claims["verdict"] == verdict).sum()) for verdict in VERDICTS]
    labels = ["published"] + [f"ours: {label} ({count})" for label, count in zip(LABELS, counts)]
    yield style.save(figure, folder, "claims", handles, labels, columns=4), ""
