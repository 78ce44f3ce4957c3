"""Names of policies and values in figures and tables: names.yaml, and `names` in the settings of figures before it."""

import functools
import re
from pathlib import Path

import yaml

import settings

_WORD = re.compile(r"[A-Za-z_][\w.]*(?:#\d+)?")


@functools.lru_cache
def table():
    """({id: name}, {axis: form of its values})"""
    groups = yaml.safe_load((Path(__file__).parent / "names.yaml").read_text())
    axes = groups.pop("axes")
    return {key: name for group in groups.values() for key, name in group.items()}, axes


def _with_values(label, axes):
    """'rate_per_s 2' as '2 req/s'."""
    def of(match):
        return axes[match[1]].format(match[2]) if match[1] in axes else match[0]

    return re.sub(r"\b([a-z_]+) ([\d.]+(?:e[+-]?\d+)?)(?![\w.])", of, label)


def shown(label, figure=""):
    """A label made of ids, such as 'sarathi, chunk_tokens 512', as the figure prints it."""
    own = settings.of(figure)["names"]
    if label in own:
        return str(own[label])
    known, axes = table()
    text = _with_values(label, {a: form for a, form in axes.items() if a not in own})
    return _WORD.sub(lambda match: str(own.get(match[0], known.get(match[0], match[0]))), text)


def own_name(label, figure):
    """The user's name of a label that is no id, such as 'simulated'; else the label."""
    return str(settings.of(figure)["names"].get(label, label))
