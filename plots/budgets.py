"""Joins the KV policies of two results folders: by recipe with its changed parts, and by budget (docs/figures.md, "Two folders")."""

from dataclasses import dataclass

import pandas as pd

import entries
import setting

RULES = ("budget", "share")
_NEAR = 0.1  # two shares of the prompt that differ by this factor or less are one budget
_NO_RECIPE = "one policy"  # of policies.add_names, where no axis names the recipe


@dataclass(frozen=True)
class Match:
    """A policy that both folders have. `how`: empty where both give one budget, else the two budgets that were joined."""

    policy: str
    left: str  # budget in the first folder, such as 'budget_tokens 128'; empty: it has none
    right: str
    how: str = ""


def with_fixed_parts(rows, folder):
    """`rows` with the recipe and the budget that all runs share, which are no axes and so in no label."""
    recipe, budget = setting.fixed_policy(folder)
    policy = [p.replace(_NO_RECIPE, recipe, 1) if recipe and p.startswith(_NO_RECIPE) else p for p in rows["policy"]]
    budgets = [b or budget for b in rows["budget"]]
    return rows.assign(policy=pd.Series(policy, index=rows.index, dtype=object), budget=pd.Series(budgets, index=rows.index, dtype=object))


def share_of(budget, prompt_tokens):
    """The share of a prompt that 'budget_tokens 128', 'budget_frac 0.25' or 'compression_ratio 0.75' keeps; None where it is not known."""
    if not budget:
        return None
    key, value = budget.split()
    if key == "budget_frac":
        return float(value)
    if key == "compression_ratio":
        return 1 - float(value)
    return float(value) / prompt_tokens if prompt_tokens else None


def text_of(budget, prompt_tokens):
    """'128 tokens (8.5 % of the prompt)', 'budget_frac 0.25'."""
    key, value = budget.split()
    if key != "budget_tokens":
        return budget
    share = share_of(budget, prompt_tokens)
    return f"{value} tokens" + (f" ({100 * share:.3g} % of the prompt)" if share else "")


def _joined(policy, budget, others, prompts, rule):
    """The Match of one policy of the first folder; `others`: the budgets that the second one has of it."""
    if budget in others and (rule == "budget" or not budget):
        return Match(policy, budget, budget)
    share = share_of(budget, prompts[0])
    shares = {other: share_of(other, prompts[1]) for other in others}
    near = {
        other: abs(s - share) / share
        for other, s in shares.items()
        if s and share and (rule == "share" or other.split()[0] != budget.split()[0]) and max(s, share) <= (1 + _NEAR) * min(s, share)
    }
    if not near:
        return None
    other = min(near, key=near.get)
    how = "" if other == budget else f"{text_of(budget, prompts[0])} with {text_of(other, prompts[1])}"
    return Match(policy, budget, other, how)


def matches(left, right, prompts, rule="budget"):
    """[Match] of the policies of `left` that `right` has too; both are lists of (policy, budget). One that is known by its place in a list
    alone ('snapkv#2') is not joined.

    `prompts`: mean prompt length of each side in tokens, or None. Rule "budget": budgets of one key are joined where they are equal; of
    different keys (budget_frac, compression_ratio, budget_tokens) where they keep the same share of the prompt, within 10 %. Rule "share":
    all of them by that share.
    """
    budgets_of = {}
    for policy, budget in right:
        budgets_of.setdefault(policy, []).append(budget)
    found = [_joined(policy, budget, budgets_of.get(policy, ()), prompts, rule) for policy, budget in left if not entries.has_place(policy)]
    return [match for match in found if match]
