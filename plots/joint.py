"""Which figure two results folders have together: frontier, accuracy_serving or fidelity_serving (docs/figures.md, "Two folders")."""

from pathlib import Path

import entries
import frontier
import joint_serving
import setting
import settings
from load import ResultsError, Unjoinable, load


def kind_of(results):
    """The content of a folder, for a message."""
    if results.is_claims:
        return "has published claims"
    if results.is_points:
        return "has measured points"
    if results.summary is None:
        return "has no runs"
    if results.is_accuracy:
        return "has graded answers"
    if results.is_hit_ratio:
        return "has hit ratios"
    if results.is_replay:
        return "is a replay"
    hosts = list(results.summary["host"].unique()) if "host" in results.axes else []
    return f"was served on {' and '.join(hosts)}" if hosts else "was served on one host"


def is_served(results):
    return results.summary is not None and not (results.is_accuracy or results.is_replay or results.is_hit_ratio)


def pairs_of(everything):
    """[(what draws it, quality, served)]: of the folders loaded, the one that was served with each that says what a KV policy keeps.

    List entries are named by their parameters: places such as 'snapkv#2' differ between two lists.
    Raises Unjoinable, with what each folder holds, where there is no such pair or the choice is not clear.
    """
    everything = [entries.show_in(results) for results in everything]
    graded, replays, served = ([r for r in everything if is_it(r)] for is_it in (lambda r: r.is_accuracy, lambda r: r.is_replay, is_served))
    if len(served) != 1 or len(graded) > 1 or len(replays) > 1 or not graded + replays:
        kinds = ", ".join(f"{r.folder} {kind_of(r)}" for r in everything)
        raise Unjoinable(f"one folder of graded answers or a replay is joined with one of a serving experiment; {kinds}")
    if "host" not in served[0].axes:
        return [(joint_serving.draw, quality, served[0]) for quality in graded + replays]
    if not graded:
        raise Unjoinable(f"a serving experiment with 'host' as an axis is joined with graded answers; {replays[0].folder} is a replay")
    return [(frontier.draw, graded[0], served[0])]


def _looked_for(path, folder):
    """A relative path as the experiment's files are looked for: from the working directory, then beside the experiment."""
    places = setting.resolved(folder).get("paths_from") or {}
    told = [places[key] for key in ("working_folder", "experiment_folder") if isinstance(places.get(key), str)]
    tried = [Path(path), *(folder / place / path for place in told)]
    return next((p for p in tried if p.is_dir()), tried[0])


def asked_for(folder):
    """Folders that the settings of joint figures name with `join`: [(figure, its Path)]."""
    return [(name, _looked_for(path, folder)) for name in settings.JOINT for path in [settings.of(name).get("join")] if path]


def asked_pair(results, name, other):
    """The pair that `join` asks for. Raises Unjoinable where the folders have no figure of this name."""
    try:
        found = pairs_of([load(other), results])
    except Unjoinable:
        raise
    except ResultsError as error:
        raise Unjoinable(str(error)) from None
    draw, quality, served = found[0]
    given = frontier.NAME if draw is frontier.draw else joint_serving.name_of(quality)
    if given != name or served.folder != results.folder:
        raise Unjoinable(f"{other} {kind_of(quality)} and {results.folder} {kind_of(served)}, so their figure is '{given}'")
    return draw, quality, served
