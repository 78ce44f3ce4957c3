"""Entries of one list that name one policy: results tell them apart by place ('sarathi#1'), readers by the parameters in which they differ.

The program finds these parameters (app/results/entry_labels.h) and writes them to manifest.json: `entries`, column -> label -> parameter -> value.
A label without parameters, or with null, is shown as it is: its runs do not agree on them.
"""

import dataclasses
import json
import re

import pandas as pd

_HELD = 0xE000  # first of the characters for private use: each holds a text that later replacements leave alone


def of_folder(folder):
    """{column: {label: {parameter: value}}}, with {} for a label without parameters; {} where the folder has no such labels."""
    try:
        found = json.loads((folder / "manifest.json").read_text()).get("entries", {})
    except (OSError, ValueError, AttributeError):
        return {}
    found = found if isinstance(found, dict) else {}
    return {column: {label: own if isinstance(own, dict) else {} for label, own in labels.items()} for column, labels in found.items() if isinstance(labels, dict)}


def texts_of(folder):
    """{label: 'budget_tokens 512'}, longer labels first. Left out, so that readers see the label itself: one that has no parameters in a column or
    others in two columns, and those of one policy that have the same parameters."""
    found, unclear = {}, set()
    for labels in of_folder(folder).values():
        texts = {label: ", ".join(f"{key} {value}" for key, value in parameters.items()) for label, parameters in labels.items()}
        names = [(base(label), text) for label, text in texts.items()]
        unclear |= {label for label, text in texts.items() if not text or names.count((base(label), text)) > 1 or found.setdefault(label, text) != text}
    return {label: found[label] for label in sorted(found, key=len, reverse=True) if label not in unclear}


def base(label):
    """'sarathi' of 'sarathi#2'."""
    return re.sub(r"#\d+$", "", label)


def has_place(text):
    """True for a text with a label such as 'sarathi#2', whose parameters are not known."""
    return re.search(r"\w#\d+(?!\w)", text) is not None


def in_table(label, labels):
    """A label as tables have it: 'sarathi {budget_tokens: 512}'. `labels`: of its column."""
    parameters = labels.get(label)
    return f"{base(label)} {{{', '.join(f'{key}: {value}' for key, value in parameters.items())}}}" if parameters else label


def held(text, texts):
    """(text, [parameters]): each label in the text as 'sarathi (\\ue000)', where the character holds the parameters; `unheld` puts them there."""
    found = []

    def put(match):
        found.append(texts[label])
        mark = f"({chr(_HELD + len(found) - 1)})"
        return mark if match[0].startswith("(") else f"{base(label)} {mark}"

    for label in texts:
        text = re.sub(rf"\({re.escape(label)}\)|(?<![\w.]){re.escape(label)}(?!\d)", put, text)
    return re.sub(rf"\) \((?=[{chr(_HELD)}-\uf8ff])", ", ", text), found


def unheld(text, parameters):
    for place, one in enumerate(parameters):
        text = text.replace(chr(_HELD + place), one)
    return text


def show_in(results):
    """Loaded results with 'sarathi (budget_tokens 512)' in place of the labels in the axes of their summary. Labels without parameters remain."""
    texts = texts_of(results.folder)
    if not texts or results.summary is None:
        return results
    results = dataclasses.replace(results, summary=results.summary.copy())
    for column in [c for c in (*results.axes, "policy") if c in results.summary and not pd.api.types.is_numeric_dtype(results.summary[c])]:
        results.summary[column] = results.summary[column].map(lambda v: unheld(*held(v, texts)) if isinstance(v, str) else v)
    return results
