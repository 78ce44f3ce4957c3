"""Names of policies and values in figures and tables: names.yaml, and `names` in the settings of figures before it."""

import functools
import re
from pathlib import Path

import yaml

import entries
import settings

# Parts of a KV recipe that a label names when an experiment changes them.
_PARTS = "scorer|allocator|trigger|disposal|format|selector|prefill_selector|prompt_pruner|prompt_rewriter"
_CHANGED = re.compile(rf"^(.*?) ((?:{_PARTS}) [^()]+)$")
_OWN_PART = re.compile(rf"^(\w+)( .*)?\(({_PARTS}) (\w+)(, |\))")
_POOLS = re.compile(r"(\d (?:encode|prefill|decode|mixed)) (?=\d)")
_WORD = re.compile(r"[A-Za-z_][\w.]*(?:#\d+)?")


@functools.lru_cache
def _groups():
    return yaml.safe_load((Path(__file__).parent / "names.yaml").read_text())


@functools.lru_cache
def table():
    """({id: name}, {axis: form of its values}), without models and hardware."""
    return {key: name for group, ids in _groups().items() if group not in ("axes", "models", "hardware") for key, name in ids.items()}, _groups()["axes"]


def model_name(model, figure=""):
    """The name of a model, such as 'Llama-3.1-8B' of 'llama-3.1-8b'; the id where it has none. Ids of models are looked up whole."""
    return str(settings.of(figure)["names"].get(model, _groups()["models"].get(model, model)))


def _whole_name(text, figure):
    """The name of a model or a GPU, which are looked up whole; else the text."""
    return model_name(_groups()["hardware"].get(text, text), figure) if text not in settings.of(figure)["names"] else model_name(text, figure)


def _with_values(label, axes):
    """'rate_per_s 2' as '2 req/s'."""
    def of(match):
        if match[1] not in axes:
            return match[0]
        text = axes[match[1]].format(match[2])
        return text[:-1] if match[2] == "1" and re.fullmatch(r"1 [a-z]+s", text) else text

    text = re.sub(r"\b([a-z_]+) ([\d.]+(?:e[+-]?\d+)?)(?![\w.])", of, label)
    return _POOLS.sub(r"\1 + ", text)


def _bracketed(label, axes):
    """'snapkv allocator pyramid, share 0.1' as 'snapkv (allocator pyramid, share 0.1)': a changed part with the numbers that follow it."""
    parts = label.split(", ")
    for i, part in enumerate(parts):
        changed = None if "(" in label else _CHANGED.match(part)
        if changed:
            end = next((j for j in range(i + 1, len(parts)) if not re.fullmatch(r"\w+ [\d.]+", parts[j]) or parts[j].split()[0] in axes), len(parts))
            inside = ", ".join([changed[2], *parts[i + 1 : end]])
            return ", ".join([*parts[:i], f"{changed[1]} ({inside})", *parts[end:]])
    return label


def _without_own_part(label):
    """A part that has the recipe's own name is not named again: 'xattention (prefill_selector xattention, share 0.1)'."""
    own = _OWN_PART.match(label)
    if not own or not own[1].replace("_", "").startswith(own[4].replace("_", "")):
        return label
    rest = label[own.end() :]
    return f"{own[1]}{own[2] or ' '}(" + (rest if own[5] == ", " else f"{own[3].replace('_', ' ')} changed){rest}")


def shown(label, figure="", axis=""):
    """A label made of ids, such as 'sarathi, chunk_tokens 512', as the figure prints it; 'sarathi#1' as 'Sarathi (budget_tokens 512)'.
    `axis`: the name of the axis of a label that is a bare number."""
    own = settings.of(figure)["names"]
    if label in own:
        return str(own[label])
    if axis and re.fullmatch(r"[\d.e+-]+", label):
        return shown(f"{axis} {label}", figure)
    known, axes = table()
    label, parameters = entries.held(label, {entry: text for entry, text in settings.entry_texts.items() if entry not in own})
    label = _without_own_part(_bracketed(", ".join(_whole_name(part, figure) for part in label.split(", ")), axes))
    text = _with_values(label, {a: form for a, form in axes.items() if a not in own})
    text = _WORD.sub(lambda match: str(own.get(match[0], known.get(match[0], match[0]))), text)
    return entries.unheld(text, parameters)


def own_name(label, figure):
    """The user's name of a label that is no id, such as 'simulated'; else the label."""
    return str(settings.of(figure)["names"].get(label, label))
