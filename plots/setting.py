"""Settings of an experiment beside its axes: limits of the SLO and the names of models, from resolved.yaml and manifest.json."""

import json
import re

_NUMBER = r"([0-9.eE+]+)"


def _resolved(folder):
    path = folder / "resolved.yaml"
    return path.read_text(errors="replace") if path.is_file() else ""


def _block(text, key):
    """The text under a key of the top level, in either form of YAML; "" where there is none."""
    found = re.search(rf"^{key}:[ ]*(\S[^\n]*(?:\n[ ]+[^\n]*)*|(?:\n[ ]+[^\n]*)+)", text, re.MULTILINE)
    return found[1] if found else ""


def slo_ms(folder):
    """{"ttft": limit, "tpot": limit} in ms: those that are given, and are one number."""
    block = re.split(r"\b(?:classes|clients):", _block(_resolved(folder), "slo"))[0]  # limits of some requests are no line
    found = {m: re.search(rf"\b{m}_ms: *{_NUMBER}[ ]*(?=[,}}\n]|$)", block) for m in ("ttft", "tpot")}
    return {metric: float(match[1]) for metric, match in found.items() if match}


def _base(path):
    return path.strip("'\" ").rstrip("/").split("/")[-1]


def sample_model(folder):
    """The model whose attention `samples` hold; "" where they do not name one."""
    names = {_base(m) for m in re.findall(r"\bmodel: *([^,}\n]+)", _block(_resolved(folder), "samples"))}
    return names.pop() if len(names) == 1 else ""


def run_model(folder):
    """The model of all runs; "" where they differ or do not say."""
    try:
        runs = json.loads((folder / "manifest.json").read_text()).get("runs", [])
        names = {run["model"] for run in runs if isinstance(run.get("model"), str)}
    except (OSError, ValueError, AttributeError, TypeError):
        return ""
    return names.pop() if len(names) == 1 else ""
