"""Hit ratio over cache size, one line per eviction policy; Belady, who knows the future, is the upper line."""

import numpy as np

import style
from groups import combinations, mean_and_interval
from load import slug, value_text

_X = "capacity_blocks"


def _curve(rows, column):
    points = [(x, mean_and_interval(part[column])[0]) for x, part in rows.groupby(_X)]
    return np.array([p for p in points if np.isfinite(p[1])]).reshape(-1, 2)


def _plot(axis, curves):
    others = [i for i, (name, _) in enumerate(curves) if name != "belady"]
    for i, (name, points) in enumerate(curves):
        if name == "belady":
            look = {"color": "black", "linestyle": "-", "linewidth": 1.8, "zorder": 1.9}
        else:
            look = style.line(others.index(i))
        axis.plot(points[:, 0], 100 * points[:, 1], **look)


def _figure(rows, column, folder, name):
    figure, (axis,) = style.panels(1, 1.9)
    curves = [(policy, _curve(part, column)) for policy, part in rows.groupby("block_cache", sort=False)]
    _plot(axis, curves)
    style.logarithmic(axis, "x", rows[_X].min(), rows[_X].max())
    axis.set_ylim(bottom=0)
    axis.set_xlabel("Cache size (blocks)")
    axis.set_ylabel("Hit ratio (% of blocks)" if column == "hit_frac" else "Hit ratio (% of tokens)")
    texts = ["belady (upper bound)" if policy == "belady" else str(policy) for policy, _ in curves]
    handles = list(axis.lines)
    order = sorted(range(len(texts)), key=lambda i: not texts[i].startswith("belady"))
    return style.save(figure, folder, name, [handles[i] for i in order], [texts[i] for i in order])


def others_of(results):
    """Axes that vary and are neither the eviction policy nor the size."""
    return [a for a in results.axes if a not in ("block_cache", _X) and results.summary[a].nunique() > 1]


def draw(results, folder, every=False):
    if not results.is_hit_ratio:
        return
    results.need("summary", ["block_cache", _X, "hit_frac", "token_hit_frac"], "the hit-ratio curve")
    for values, rows in combinations(results.summary, others_of(results)):
        suffix = "".join(f"_{slug(value_text(v))}" for v in values)
        yield _figure(rows, "hit_frac", folder, f"hit_ratio{suffix}"), ""
        if not np.allclose(rows["hit_frac"], rows["token_hit_frac"], atol=0.002, equal_nan=True):
            yield _figure(rows, "token_hit_frac", folder, f"hit_ratio_tokens{suffix}"), ""
