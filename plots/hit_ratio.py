"""Hit ratio over cache size, one line per eviction policy; Belady, who knows the future, is the upper line."""

import numpy as np
from matplotlib.lines import Line2D

import style
from groups import combinations, mean_and_interval, only_labels
from load import slug, value_text
from names import shown

X, _GIB = "capacity_blocks", "capacity_gib"
_VISIBLE = 0.02  # difference of hit ratios of blocks and of tokens from which both are drawn
_BELADY = {"color": "black", "linestyle": "-", "linewidth": 1.8, "zorder": 1.9, "marker": "_", "markersize": 6, "markeredgewidth": 1.8}
_CEILING = {"color": "#606060", "linestyle": (0, (1, 1.5)), "linewidth": 0.9}


def curve_of(rows, column, x):
    points = [(at, mean_and_interval(part[column])[0]) for at, part in rows.groupby(x)]
    return np.array([p for p in points if np.isfinite(p[1])]).reshape(-1, 2)


def _plot(axis, curves):
    others = [i for i, (name, _) in enumerate(curves) if name != "belady"]
    for i, (name, points) in enumerate(curves):
        look = _BELADY if name == "belady" else style.line(others.index(i) + 1)  # the first colour is nearly Belady's
        axis.plot(points[:, 0], 100 * points[:, 1], **look)


def ceiling(rows, column):
    """The hit ratio of a cache that evicts nothing: misses are then first uses. None: every size evicts."""
    whole = rows[rows["evictions"] == 0] if "evictions" in rows else rows[:0]
    return whole[column].max() if len(whole) else None


def without_flat(rows):
    """The rows up to the second of the sizes at which no policy evicts, and how many larger sizes there are: all of them show the same."""
    if "evictions" not in rows:
        return rows, 0
    flat = sorted(size for size, part in rows.groupby(X) if (part["evictions"] == 0).all())
    return (rows[rows[X] <= flat[1]], len(flat) - 2) if len(flat) > 2 else (rows, 0)


def _x_of(rows):
    """Bytes where they are known, else blocks: the column, its label, and what a block has."""
    if _GIB in rows and (rows[_GIB] > 0).all():
        return _GIB, "Cache size (GiB)", f"A block is {1024 * rows[_GIB].iloc[0] / rows[X].iloc[0]:.3g} MiB."
    return X, "Cache size (blocks)", ""


def _figure(rows, column, folder, name):
    rows, cut = without_flat(rows)
    figure, (axis,) = style.panels(name, 1, 1.9)
    x, label, note = _x_of(rows)
    parts = dict(list(rows.groupby("block_cache", sort=False)))
    curves = [(policy, curve_of(parts[policy], column, x)) for policy in only_labels(parts, name)]
    _plot(axis, curves)
    handles, texts = list(axis.lines), ["Belady (upper bound)" if policy == "belady" else shown(str(policy), name) for policy, _ in curves]
    most = ceiling(rows, column)
    if most is not None:
        axis.axhline(100 * most, **_CEILING)
        handles.append(Line2D([], [], **_CEILING))
        texts.append("all but first uses")
    style.logarithmic(axis, "x", rows[x].min(), rows[x].max())
    axis.set_ylim(bottom=0)
    axis.set_xlabel(label)
    notes = [note, f"{cut} larger sizes, of the same hit ratios, are not drawn." if cut > 0 else ""]
    axis.set_ylabel("Hit ratio (% of blocks)" if column == "hit_frac" else "Hit ratio (% of tokens)")
    order = sorted(range(len(texts)), key=lambda i: not texts[i].startswith("Belady"))
    return style.save(figure, folder, name, [handles[i] for i in order], [texts[i] for i in order], note=" ".join(filter(None, notes)))


def others_of(results):
    """Axes that vary and are neither the eviction policy nor the size."""
    return [a for a in results.axes if a not in ("block_cache", X) and results.summary[a].nunique() > 1]


def draw(results, folder, every=False):
    if not results.is_hit_ratio:
        return
    results.need("summary", ["block_cache", X, "hit_frac", "token_hit_frac"], "the hit-ratio curve")
    for values, rows in combinations(results.summary, others_of(results)):
        suffix = "".join(f"_{slug(value_text(v))}" for v in values)
        yield _figure(rows, "hit_frac", folder, f"hit_ratio{suffix}"), ""
        if not np.allclose(rows["hit_frac"], rows["token_hit_frac"], atol=_VISIBLE, rtol=0, equal_nan=True):
            yield _figure(rows, "token_hit_frac", folder, f"hit_ratio_tokens{suffix}"), ""
