"""Draws what a results folder has into its figures/: python3 plots/plot.py results/NAME

Reads result files only (docs/results.md); the figures are described in docs/figures.md.
"""

import argparse
import sys
import time

import accuracy
import bars
import cdf
import fidelity
import frontier
import hit_ratio
import load_curves
import replay_predicts
import serving_fidelity
import style
import table
import timeline
import validation
from load import ResultsError, load

KINDS = (cdf, load_curves, timeline, hit_ratio, bars, validation, serving_fidelity)


def draw_all(folder, every=False, recipe=None):
    """Names of the figures written, and what was left out of them. `recipe`: of a replay, the one to show head by head."""
    results = load(folder)
    style.apply()
    figures = results.folder / "figures"
    names, notes = [], []
    if results.is_accuracy:
        drawings = [accuracy.draw(results, figures, every), replay_predicts.draw(results, figures, every)]
    elif results.is_replay:
        drawings = [fidelity.draw(results, figures, every, recipe)]
    else:
        drawings = [kind.draw(results, figures, every) for kind in KINDS]
    for drawing in drawings:
        for name, note in drawing:
            names.append(name)
            if note:
                notes.append(f"{name}: {note}")
    if table.write(results, figures):
        names.append("summary.tex")
    return figures, names, notes


def draw_frontier(folders):
    """Of graded answers and a served experiment together: names and notes, in the second one's figures."""
    everything = [load(folder) for folder in folders]
    graded = [r for r in everything if r.is_accuracy]
    served = [r for r in everything if not r.is_accuracy and r.summary is not None and "host" in r.axes]
    if len(graded) != 1 or len(served) != 1:
        return None, [], []
    style.apply()
    folder = served[0].folder / "figures"
    drawn = list(frontier.draw(graded[0], served[0], folder))
    return folder, [name for name, _ in drawn], [f"{name}: {note}" for name, note in drawn if note]


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="kvlab plot", description="Draw a results folder's figures as PDF and PNG, and a LaTeX table.")
    parser.add_argument("folder", nargs="+", help="results/NAME, as written by kvlab run")
    parser.add_argument("--all", action="store_true", help="draw every value of a long sweep, not a few of them")
    parser.add_argument("--recipe", help="of a replay: draw this recipe layer by layer and head by head, at every budget")
    parser.add_argument("--quiet", action="store_true", help="one line per folder")
    options = parser.parse_args(arguments)
    for folder in options.folder:
        began = time.monotonic()
        try:
            figures, names, notes = draw_all(folder, options.all, options.recipe)
        except (ResultsError, OSError) as error:
            print(f"kvlab plot: {error}", file=sys.stderr)
            return 2
        if not options.quiet:
            for line in notes:
                print(f"  {line}", file=sys.stderr)
        print(f"kvlab: drew {len(names)} figures and tables into {figures} in {time.monotonic() - began:.1f} s", file=sys.stderr)
    if len(options.folder) > 1:
        try:
            figures, names, notes = draw_frontier(options.folder)
        except ResultsError as error:
            print(f"kvlab plot: {error}", file=sys.stderr)
            return 2
        for line in notes if not options.quiet else []:
            print(f"  {line}", file=sys.stderr)
        if names:
            print(f"kvlab: drew {', '.join(names)} of the folders together into {figures}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
