"""Draws what a results folder has into its figures/: python3 plots/plot.py results/NAME

Reads result files only (docs/results.md); the figures are described in docs/figures.md.
"""

import argparse
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path

import accuracy
import cdf
import claims
import comparison
import custom
import fidelity
import hit_ratio
import joint
import layout
import load_curves
import points
import prefill
import replay_predicts
import serving_fidelity
import settings
import style
import sweep_map
import table
import timeline
import validation
import written
from load import ResultsError, Unjoinable, load

KINDS = (cdf, load_curves, timeline, hit_ratio, comparison, sweep_map, validation, serving_fidelity)


@dataclass
class Drawn:
    """The figures that a folder has now, those left out, and the kinds that failed."""

    folder: Path = None
    names: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    failures: list = field(default_factory=list)

    def add(self, kind, figures):
        """Draws figures, (name, note) each. An unexpected error costs the rest of its kind and nothing else."""
        try:
            for name, note in figures:
                if name is None:  # the user's settings leave it out
                    continue
                self.names.append(name)
                self.notes += [f"{name}: {text}" for text in (note, layout.remarks.pop(name, "")) if text]
        except (ResultsError, OSError):
            raise
        except Exception as error:
            self.failures.append(f"{kind}: {type(error).__name__}: {' '.join(str(error).split())} ({_place(error)})")

    def add_joint(self, draw, quality, served, every):
        """The figure of two folders, or a note that says why there is none."""
        try:
            with settings.entries_shown():
                self.add("joint", draw(quality, served, self.folder, every))
        except Unjoinable as error:
            self.notes.append(f"no joint figure: {error}")


def _place(error):
    """The place in plots/ that an error comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    last = next((f for f in reversed(frames) if Path(f.filename).parent == Path(__file__).parent), frames[-1])
    return f"{Path(last.filename).name}:{last.lineno}"


def kinds_of(results):
    """Modules that draw what these results have."""
    if results.is_accuracy:
        return (accuracy, replay_predicts)
    if results.is_claims:
        return (claims,)
    if results.is_points:
        return (points,)
    return (fidelity, prefill) if results.is_replay else KINDS


def draw_all(folder, every=False, recipe=None, overrides=()):
    """Draws everything that the folder has numbers for. `recipe`: of a replay, the one to show head by head; `overrides`: settings of --set."""
    results = load(folder)
    settings.start(results.folder, overrides)
    style.apply()
    written.start()
    drawn = Drawn(results.folder / "figures")
    drawn.add("figures", custom.draw(results, drawn.folder, every))
    for kind in kinds_of(results):
        options = {"recipe": recipe} if kind is fidelity else {}
        drawn.add(kind.__name__, kind.draw(results, drawn.folder, every, **options))
    _add_asked(drawn, results, every)
    drawn.add("summary.tex", table.write(results, drawn.folder))
    written.finish(drawn.folder, results.folder)
    settings.refuse_unmet(drawn.names)
    return drawn


def draw_joint(folders, every=False, overrides=(), into=None):
    """The figures that folders have together, in `into` or among those of the folder that was served; a note where there is none."""
    try:
        pairs = joint.pairs_of([load(folder) for folder in folders])
    except Unjoinable as error:
        return Drawn(notes=[f"no joint figure: {error}"])
    served = pairs[0][2]
    settings.start(served.folder, overrides)
    style.apply()
    written.start()
    drawn = Drawn(into or served.folder / "figures")
    for draw, quality, _ in pairs:
        drawn.add_joint(draw, quality, served, every)
    if into is None:
        written.finish(drawn.folder, served.folder)
    return drawn


def _add_asked(drawn, results, every):
    """The joint figures that the experiment's own settings ask for."""
    for name, other in joint.asked_for(results.folder):
        try:
            draw, quality, served = joint.asked_pair(results, name, other)
        except Unjoinable as error:
            drawn.notes.append(f"{name}: not drawn: {error}")
            continue
        drawn.add_joint(draw, quality, served, every)


def _short(notes):
    """Figures of which the same is to be said share a line."""
    of_text = {}
    for note in notes:
        name, text = note.split(": ", 1)
        of_text.setdefault(text, []).append(name)
    return [f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {text}" for text, names in of_text.items()]


def _report(drawn, quiet):
    """Returns the exit status."""
    for line in [] if quiet else _short(drawn.notes):
        print(f"  {line}", file=sys.stderr)
    for line in drawn.failures:
        print(f"kvlab plot: not drawn: {line}", file=sys.stderr)
    return 1 if drawn.failures else 0


def _overrides(options):
    return [*options.set, *(["figures.all.format=[pdf, png, pgf]"] if options.pgf else [])]


def _draw_folders(options):
    status = 0
    for folder in options.folder:
        began = time.monotonic()
        drawn = draw_all(folder, options.all, options.recipe, _overrides(options))
        status = max(status, _report(drawn, options.quiet))
        print(f"kvlab: drew {len(drawn.names)} figures and tables into {drawn.folder} in {time.monotonic() - began:.1f} s", file=sys.stderr)
    if len(options.folder) > 1:
        drawn = draw_joint(options.folder, options.all, _overrides(options))
        for note in (n for n in drawn.notes if n.startswith("no joint figure")):
            print(f"kvlab: {note}", file=sys.stderr)
        drawn.notes = [n for n in drawn.notes if not n.startswith("no joint figure")]
        status = max(status, _report(drawn, options.quiet))
        if drawn.names:
            print(f"kvlab: drew {', '.join(drawn.names)} of the folders together into {drawn.folder}", file=sys.stderr)
    return status


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="kvlab plot", description="Draw a results folder's figures as PDF and PNG, and a LaTeX table.")
    parser.add_argument("folder", nargs="+", help="results/NAME, as written by kvlab run")
    parser.add_argument("--all", action="store_true", help="draw every value of a long sweep, not a few of them")
    parser.add_argument("--recipe", help="of a replay: draw this recipe layer by layer and head by head, at every budget")
    parser.add_argument("--set", action="append", default=[], metavar="figures.NAME.KEY=VALUE",
                        help="a setting of a figure, or of all: figures.comparison.size=[7,3], figures.all.names.vllm_v1='vLLM'")
    parser.add_argument("--pgf", action="store_true", help="also write NAME.pgf, pgfplots source for LaTeX")
    parser.add_argument("--quiet", action="store_true", help="do not say what was left out")
    try:
        return _draw_folders(parser.parse_args(arguments))
    except (ResultsError, OSError) as error:
        print(f"kvlab plot: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
