"""An experiment's settings beside its axes: limits of the SLO, the models and the GPUs, from resolved.yaml and manifest.json."""

import json

import yaml

from policies import BUDGETS

_SLO = ("ttft", "tpot", "e2e")


def resolved(folder):
    """The experiment as it was run; {} where the folder does not say."""
    path = folder / "resolved.yaml"
    try:
        found = yaml.load(path.read_text(errors="replace"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)) if path.is_file() else {}
    except yaml.YAMLError:
        return {}
    return found if isinstance(found, dict) else {}


def slo_ms(folder):
    """{"ttft": limit, "tpot": limit, "e2e": limit} in ms: those that are given, and are one number. Limits of some requests are no line."""
    slo = resolved(folder).get("slo")
    found = {m: slo.get(f"{m}_ms") for m in _SLO} if isinstance(slo, dict) else {}
    limits = {metric: float(limit) for metric, limit in found.items() if isinstance(limit, (int, float)) and not isinstance(limit, bool)}
    return limits or _preset_ms(folder)


def _preset_ms(folder):
    """The limits of an SLO that the experiment names, from the manifest; {} where runs differ."""
    try:
        found = [run.get("slo_ms") for run in json.loads((folder / "manifest.json").read_text()).get("runs", [])]
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
    return found[0] if found and isinstance(found[0], dict) and all(one == found[0] for one in found) else {}


def _base(path):
    return str(path).rstrip("/").split("/")[-1]


def _models_in(node):
    if isinstance(node, dict):
        return {_base(v) for k, v in node.items() if k == "model" and isinstance(v, str)}.union(*map(_models_in, node.values()))
    return set().union(*map(_models_in, node)) if isinstance(node, list) else set()


def sample_model(folder):
    """The model whose attention `samples` hold; "" where they do not name one."""
    names = _models_in(resolved(folder).get("samples"))
    return names.pop() if len(names) == 1 else ""


def _of_runs(folder, key):
    """The value of all runs in manifest.json; "" where they differ or do not say."""
    try:
        runs = json.loads((folder / "manifest.json").read_text()).get("runs", [])
        found = {run[key] for run in runs if isinstance(run.get(key), str)}
    except (OSError, ValueError, AttributeError, TypeError):
        return ""
    return found.pop() if len(found) == 1 else ""


def run_model(folder):
    """The model of all runs, without its folders; "" where they differ or do not say."""
    return _base(_of_runs(folder, "model"))


def run_hardware(folder):
    """The GPUs of all runs; of pools, whose runs do not name them, the experiment's own key where no pool has another."""
    experiment = resolved(folder)
    given = experiment.get("hardware")
    own = given.upper() if isinstance(given, str) and "hardware" not in str(experiment.get("pools")) else ""
    return _of_runs(folder, "hardware") or (own if "pools" in experiment else "")


def budget_tokens(folder):
    """The budget of all KV policies that have one, in tokens; None where they differ or have none."""
    def budgets(node):
        if isinstance(node, dict):
            own = {node["budget_tokens"]} if isinstance(node.get("budget_tokens"), int) else {-1} if isinstance(node.get("budget_tokens"), list) else set()
            return own.union(*map(budgets, node.values()))
        return set().union(*map(budgets, node)) if isinstance(node, list) else set()

    found = budgets(resolved(folder).get("kv_policy"))
    return found.pop() if len(found) == 1 and -1 not in found else None


def fixed_policy(folder):
    """(recipe, budget) that all runs share, such as ('snapkv', 'budget_tokens 128'); "" for each that varies or is not given."""
    policy = resolved(folder).get("kv_policy")
    if isinstance(policy, list) and len(policy) == 1:
        policy = policy[0]
    if isinstance(policy, str):
        return policy, ""
    if not isinstance(policy, dict):
        return "", ""
    recipe = policy.get("recipe")
    budgets = [f"{key} {policy[key]:.12g}" for key in BUDGETS if isinstance(policy.get(key), (int, float))]
    return recipe if isinstance(recipe, str) else "", budgets[0] if len(budgets) == 1 else ""
