"""Writes docs/kv-recipes.md: one line per KV recipe, from the recipe files, the claims' verdicts and docs/kv-recipes-measured.csv.

usage: .ci/recipe_table.py [--check]      --check: exit status 1 if the file is not what would be written
"""

import csv
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "docs/kv-recipes.md"
HEAD = """# KV recipes: sources, our own definitions, measured results

`python3 .ci/recipe_table.py` writes this page from the recipe files (`policies/kv/recipes/`), the verdicts of [claims](results/claims.md) and
[kv-recipes-measured.csv](kv-recipes-measured.csv), which is kept by hand and has figures from other pages of these docs. CI compares this page with its sources.

- *Read*: the source of the description (`confidence`), and the paper. *From code* and *from paper*: the source was read; *recalled*: from memory.
- *Ours*: our interpretations, gaps that we filled, and parts of the method that are left out (`notes`).
- *Holds on the probe*: measured on the shipped model, with the page that has it. *Simulated* figures come from claims: our figure, then the published one.
- *Does not*: measured failures, and claims for which only the direction is reproduced (*direction*) or nothing is.

An empty field means that it was not measured.

"""


def fields_of(path):
    """Top-level keys of a recipe file that hold one line of text."""
    fields = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        match = re.match(r'([a-z_]+): (?:"((?:[^"\\]|\\.)*)"|([^"].*))$', line)
        if match:
            fields[match[1]] = match[2].replace('\\"', '"') if match[2] is not None else match[3]
    return fields


def claims_by_recipe():
    """[(verdict, text)] of each recipe that a claim compares unchanged, except for its budget."""
    with open(ROOT / "docs/results/claims.csv", encoding="utf-8", newline="") as file:
        verdicts = {row["name"]: row for row in csv.DictReader(file)}
    found = {}
    for path in sorted((ROOT / "claims").glob("*.yaml")):
        match = re.search(r"^  ours: \{kv_policy: (?:([a-z0-9_]+)|\{recipe: ([a-z0-9_]+), budget_(?:tokens|frac): [0-9.]+\})[,}]",
                          path.read_text(encoding="utf-8"), re.M)
        row = verdicts.get(path.stem)
        if not match or not row or not row["verdict"]:
            continue
        figure = f"{float(row['ours']):.3g} of {row['published']} {row['unit']}"
        text = f"[{path.stem}](results/claims.md#{path.stem}) {figure}, simulated"
        found.setdefault(match[1] or match[2], []).append((row["verdict"], text))
    return found


def measured():
    with open(ROOT / "docs/kv-recipes-measured.csv", encoding="utf-8", newline="") as file:
        return {row["recipe"]: row for row in csv.DictReader(file)}


def cell(parts):
    return "; ".join(p for p in parts if p).replace("|", "\\|")


def page():
    by_hand, claims = measured(), claims_by_recipe()
    lines = ["| recipe | read | ours | holds on the probe | does not |", "|---|---|---|---|---|"]
    paths = sorted((ROOT / "policies/kv/recipes").glob("*.yaml"))
    unknown = sorted(set(by_hand) - {p.stem for p in paths})
    if unknown:
        sys.exit(f"docs/kv-recipes-measured.csv: no recipe '{unknown[0]}' in policies/kv/recipes")
    for path in paths:
        fields, hand, of_claims = fields_of(path), by_hand.get(path.stem, {}), claims.get(path.stem, [])
        where = f"([{hand['page']}]({hand['page']}.md))" if hand.get("page") else ""
        holds = [f"{hand['holds']} {where}" if hand.get("holds") else ""] + [t for v, t in of_claims if v == "reproduced"]
        fails = [f"{hand['does_not']} {where}" if hand.get("does_not") else ""]
        fails += [f"{t}: {v.replace('_', ' ')}" for v, t in of_claims if v != "reproduced"]
        lines.append(f"| `{path.stem}` | {cell([fields['confidence'], fields['paper']])} | {cell([fields.get('notes', '')])} | "
                     f"{cell(holds)} | {cell(fails)} |")
    return HEAD + "\n".join(lines) + "\n"


def main(arguments):
    text = page()
    if "--check" not in arguments:
        OUTPUT.write_text(text, encoding="utf-8")
        return 0
    if OUTPUT.exists() and OUTPUT.read_text(encoding="utf-8") == text:
        return 0
    print("docs/kv-recipes.md is out of date: run python3 .ci/recipe_table.py")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
