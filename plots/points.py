"""Measured points, simulated (kvlab validate --points): a dot per point's error of TPOT, in a row per group."""

import style

_BASES = ("tables", "roofline")
_ROW_IN = 0.13
_ROWS = 60  # of one figure: more would not fit on a page
_MOST = 100  # percent: errors beyond it are drawn at the edge


def _figure(points, groups, folder, name):
    """`groups`: those of this figure, from above."""
    figure, axes = style.grid(name, 1, 1, style.PAGE_IN, 0.6 + _ROW_IN * len(groups))
    axis = axes[0, 0]
    bases = [b for b in _BASES if (points["basis"] == b).any()]
    place = {group: i for i, group in enumerate(groups)}
    here = points[points["group"].isin(groups)]
    for i, basis in enumerate(bases):
        rows = here[here["basis"] == basis]
        shift = (i - (len(bases) - 1) / 2) * 0.3
        errors = (100 * rows["diff_frac"]).clip(-_MOST, _MOST)
        axis.plot(errors, rows["group"].map(place) + shift, **{**style.point(i), "markersize": 2, "alpha": 0.5})
    middles = (100 * here.groupby(["group", "basis"], sort=False)["diff_frac"].median()).clip(-_MOST, _MOST)
    for (group, basis), middle in middles.items():
        at = place[group] + (bases.index(basis) - (len(bases) - 1) / 2) * 0.3
        axis.plot([middle, middle], [at - 0.35, at + 0.35], color="black", linewidth=1)
    axis.axvline(0, color="black", linewidth=0.6)
    axis.set_yticks(range(len(groups)), [f"{group} ({(here['group'] == group).sum()})" for group in groups], fontsize=5.5)
    axis.set_ylim(len(groups) - 0.4, -0.6)
    axis.set_xlim(-_MOST, _MOST)
    axis.set_xlabel("TPOT, simulated / measured − 1 (%)")
    beyond = int((100 * here["diff_frac"].abs() > _MOST).sum())
    note = f"A mark is the group's median.{f' {beyond} errors beyond {_MOST} % are drawn at the edge.' if beyond else ''}"
    handles = axis.lines[: len(bases)]
    return style.save(figure, folder, name, handles, bases, note=note)


def draw(results, folder, every=False):
    results.need("points", ["group", "diff_frac", "basis"], "the figure of points")
    groups = sorted(results.points["group"].unique())
    for first in range(0, len(groups), _ROWS):
        name = "point_errors" if first == 0 else f"point_errors_{first // _ROWS + 1}"
        yield _figure(results.points, groups[first : first + _ROWS], folder, name), ""
