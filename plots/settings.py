"""Settings of figures: `figures: {NAME: {KEY: value}}` of the experiment, then `--set figures.NAME.KEY=VALUE` (docs/figures.md)."""

import contextlib
import difflib

import yaml

import entries
from errors import ResultsError
from setting import resolved

LOOK = ("names", "only", "size", "title", "x_label", "y_label", "x_range", "y_range", "x_scale", "y_scale", "slo_lines", "legend", "draw", "format", "max_lines")
DATA = ("metric", "statistic", "x", "series", "panel")
JOIN = ("join", "join_by")  # of figures of two folders
TABLE = "summary"  # the name of summary.tex: `metric` chooses its columns
JOINT = ("frontier", "accuracy_serving", "fidelity_serving")
FORMATS = ("pdf", "png", "pgf")
ALL = "all"
_given = {}  # {name of a figure: its settings}
entry_texts = {}  # {label of a list entry: its parameters}, see entries.py
_met = set()  # names in _given of which there is a figure
taken = set()  # figures that the user defines: the usual ones of these names are not drawn


def unknown(what, found, known, close=""):
    near = difflib.get_close_matches(str(found), known, 1)
    return ResultsError(f"{what}: unknown {close}'{found}'; " + (f"did you mean '{near[0]}'?" if near else f"known: {', '.join(sorted(known))}"))


def one_of(what, found, known):
    """Returns `found`. ResultsError: it is none of `known`, which are named."""
    if found not in known:
        raise unknown(what, found, known)
    return found


def _numbers(place, value):
    if isinstance(value, list) and len(value) == 2 and all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in value):
        return [float(v) for v in value]
    raise ResultsError(f"{place}: expected two numbers, [a, b]")


def _words(value):
    return [str(v) for v in (value if isinstance(value, list) else [value])]


def _checked(name, key, value):
    place = f"figures.{name}.{key}"
    one_of(f"figures.{name}", key, LOOK + DATA + JOIN)
    if key in JOIN and name not in JOINT:
        raise ResultsError(f"{place}: only figures of two folders have it: {', '.join(JOINT)}")
    if key in ("size", "x_range", "y_range"):
        value = _numbers(place, value)
    elif key == "names" and not isinstance(value, dict):
        raise ResultsError(f"{place}: expected {{ID: name}}")
    elif key in ("metric", "series", "format"):
        value = _words(value)
    elif key == "only":
        value = {axis: _words(values) for axis, values in value.items()} if isinstance(value, dict) else _words(value)
    elif key in ("slo_lines", "legend", "draw") and not isinstance(value, bool):
        raise ResultsError(f"{place}: expected true or false")
    for one in value if key == "format" else ():
        one_of(place, one, FORMATS)
    if key == "join_by":
        one_of(place, value, ("budget", "share"))
    if key in ("x_scale", "y_scale"):
        one_of(place, value, ("linear", "log"))
    return value


def _add(name, found):
    if not isinstance(found, dict):
        raise ResultsError(f"figures.{name}: expected {{KEY: value}}")
    own = _given.setdefault(name, {})
    for key, value in found.items():
        value = _checked(name, key, value)
        own[key] = {**own.get(key, {}), **value} if key == "names" else value


def _read_override(text):
    """'figures.tail.names.vllm_v1=vLLM' as {'tail': {'names': {'vllm_v1': 'vLLM'}}}; the value may be a mapping, as of `run --set`."""
    path, equals, value = text.partition("=")
    parts = path.split(".")
    if equals and parts[0] == "figures" and len(parts) < 3 and (mapping := _mapping(text, value)) is not None:
        return mapping if len(parts) == 1 else {parts[1]: mapping}
    at = next((i for i, part in enumerate(parts) if i > 1 and part in LOOK + DATA + JOIN), None)
    if not equals or parts[0] != "figures" or (at is None and len(parts) < 3):
        raise ResultsError(f"--set {text}: expected figures.NAME.KEY=VALUE, such as figures.comparison.size=[7,3]")
    at = len(parts) - 1 if at is None else at
    try:
        found = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ResultsError(f"--set {text}: the value is not YAML") from None
    below = ".".join(parts[at + 1 :])
    return {".".join(parts[1:at]): {parts[at]: {below: found} if below else found}}


def _mapping(text, value):
    """The value of 'figures.NAME={KEY: value}' or 'figures={NAME: {KEY: value}}'; None: it is no mapping."""
    try:
        found = yaml.safe_load(value)
    except yaml.YAMLError:
        raise ResultsError(f"--set {text}: the value is not YAML") from None
    return found if isinstance(found, dict) else None


def start(folder, overrides=()):
    """Reads what the results folder and the command line say. ResultsError: an unknown key, or a value of the wrong form."""
    _given.clear()
    _met.clear()
    taken.clear()
    entry_texts.clear()
    entry_texts.update(entries.texts_of(folder))
    for name, found in (resolved(folder).get("figures") or {}).items():
        _add(str(name), found)
    for text in overrides:
        for name, found in _read_override(text).items():
            _add(str(name), found)


@contextlib.contextmanager
def entries_shown():
    """While figures are drawn whose labels have their parameters already, and may be of another folder: 'sarathi#2' remains as it is."""
    texts = dict(entry_texts)
    entry_texts.clear()
    try:
        yield
    finally:
        entry_texts.update(texts)


def of(figure):
    """Settings of a figure: those of all, then those of its name, or of the longest beginning of it: `cdf_ttft` of `cdf_ttft_rate_per_s_2`."""
    fitting = [n for n in _given if figure == n or figure.startswith(f"{n}_")]
    own = max(fitting, key=len, default=ALL)
    _met.update(fitting)
    merged = {**_given.get(ALL, {}), **_given.get(own, {})}
    return {**merged, "names": {**_given.get(ALL, {}).get("names", {}), **_given.get(own, {}).get("names", {})}}


def with_data(defaults):
    """{name: settings} of the figures that the user defines: with a metric, or with other data of one in `defaults`."""
    found = {}
    for name, own in _given.items():
        if name not in (ALL, TABLE, *JOINT) and any(key in own for key in DATA):
            if "metric" not in own and name not in defaults:
                raise ResultsError(f"figures.{name}: a figure of your own needs 'metric'; it has {', '.join(own)}")
            found[name] = {**_given.get(ALL, {}), **defaults.get(name, {}), **own}
    return found


def refuse_unmet(drawn):
    """ResultsError: settings for a figure that was not drawn and does not exist."""
    for name in _given:
        if name not in (ALL, *JOINT) and name not in _met:
            raise unknown("figures", name, [*drawn, ALL], "figure ")
