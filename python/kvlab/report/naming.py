"""Names and units on the page, as in the figures of the same results (plots/names.py, plots/style.py)."""

import collections
import contextlib

import settings
import style
from names import shown


@contextlib.contextmanager
def of_results(results):
    """While figures of these results are made: `figures: {all: ...}` of their experiment holds, and their labels have their parameters already."""
    settings.start(results.folder)
    with settings.entries_shown():
        yield


def named(labels, axis=""):
    """The names of the labels, in their order; labels whose names are the same keep their ids. `axis`: of labels that are bare numbers."""
    labels = list(labels)
    names = [shown(str(label), "", axis) for label in labels]
    count = collections.Counter(dict(zip(map(str, labels), names)).values())
    shared = {name for name, times in count.items() if times > 1}
    return [f"{axis} {label}".strip() if name in shared else name for label, name in zip(labels, names)]


def in_unit(title, most):
    """(title, divisor): milliseconds that reach ten seconds are in seconds."""
    if "(ms)" in title and style.in_seconds(most):
        return title.replace("(ms)", "(s)"), 1000
    return title, 1
