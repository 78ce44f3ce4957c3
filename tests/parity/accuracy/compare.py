#!/usr/bin/env python3
"""Compares kvlab's graded answers with those of Hugging Face transformers and kvpress, answer by answer.

Reads result folders that `kvlab run tests/parity/accuracy/parity.yaml` wrote, and results/*.csv here. Exit status: 0 where at most --limit of
the samples of every press x ratio x question mode are graded differently (none for the full cache), 1 otherwise, 2 where nothing can be paired.
"""

import argparse
import csv
import json
import sys
from collections import defaultdict
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]

# Our columns and the axes of each run in manifest.json. Change here if kvlab renames them.
RECIPE, SAMPLE, TURN, EXACT, FIRST_WRONG, NEG_LOG2 = "recipe", "sample", "turn", "exact", "first_wrong", "neg_log2"
COLUMNS = (
    "press", "dropped", "question", "samples", "answers", "right", "samples graded differently", "answers graded differently",
    "other first wrong byte", "-log2 p off, median", "largest",
)  # fmt: skip
RATIO_AXIS, QUESTION_AXIS = "compression_ratio", "question"


def axis(axes, name, otherwise):
    """The axis called name, whatever it is nested in (`kv_policy.compression_ratio`)."""
    return next((str(value) for key, value in axes.items() if key.split(".")[-1] == name), otherwise)


def our_answers(folders):
    """{(press, ratio, question): {(sample, turn): row}}; the full cache is ("full", "", "")."""
    answers = defaultdict(dict)
    for folder in (f for f in folders if (f / "answers.csv").exists()):
        of_run = {run["run"]: run["axes"] for run in json.loads((folder / "manifest.json").read_text())["runs"]}
        for row in csv.DictReader((folder / "answers.csv").open()):
            axes = of_run[row["run"]]
            question = axis(axes, QUESTION_AXIS, "compressed")
            press = row[RECIPE].removeprefix("kvpress_")
            case = ("full", "", "") if press == "full" else (press, f"{float(axis(axes, RATIO_AXIS, 'nan')):g}", question)
            answers[case][int(row[SAMPLE]), int(row[TURN])] = row
    return answers


def peer_answers(folder):
    answers = defaultdict(dict)
    for row in csv.DictReader((folder / "full.csv").open()):
        answers["full", "", ""][int(row["sample"]), int(row["turn"])] = row
    for row in csv.DictReader((folder / "presses.csv").open()):
        answers[row["press"], row["ratio"], row["question"]][int(row["sample"]), int(row["turn"])] = row
    return answers


def describe(place, ours, peer):
    return (
        f"    sample {place[0]} turn {place[1]} ({peer['task']}, {peer['length']}): ours {ours[EXACT]} (first wrong {ours[FIRST_WRONG]}), "
        f"peer {peer['exact']} (first wrong {peer['first_wrong']}), peer's margin {float(peer['min_margin']):.2g}, "
        f"-log2 p {float(ours[NEG_LOG2]):.5g} and {float(peer['neg_log2']):.5g}"
    )


def compare(case, ours, peer, limit):
    """Prints one row and the differing answers; True if few enough samples differ."""
    both = sorted(ours.keys() & peer.keys())
    differing = [at for at in both if int(ours[at][EXACT]) != int(peer[at]["exact"])]
    samples, bad = {s for s, _ in both}, {s for s, _ in differing}
    moved = sum(int(ours[at][FIRST_WRONG]) != int(peer[at]["first_wrong"]) for at in both)
    off = sorted(abs(float(ours[at][NEG_LOG2]) - float(peer[at]["neg_log2"])) / (0.01 + float(peer[at]["neg_log2"])) for at in both)
    right = sum(int(peer[at]["exact"]) for at in both)
    press, ratio, question = case
    print(
        f"| {press} | {ratio} | {question} | {len(samples)} | {len(both)} | {right} | {len(bad)} | {len(differing)} | {moved} "
        f"| {off[len(off) // 2]:.1e} | {off[-1]:.1e} |"
    )
    return len(bad) <= limit * len(samples), [describe(at, ours[at], peer[at]) for at in differing]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours", nargs="*", type=Path, default=[ROOT / "results" / "accuracy_parity"], help="result folders, taken together")
    parser.add_argument("--peer", type=Path, default=HERE / "results")
    parser.add_argument("--limit", type=float, default=0.01, help="share of samples that may be graded differently (default 0.01)")
    args = parser.parse_args()
    ours, peer = our_answers(args.ours), peer_answers(args.peer)
    cases = [case for case in peer if ours.get(case, {}).keys() & peer[case].keys()]
    if not cases:
        print(f"{', '.join(map(str, args.ours))}: no answers that the peer graded, too; run ./kvlab run tests/parity/accuracy/parity.yaml", file=sys.stderr)
        return 2
    print("|", " | ".join(COLUMNS), "|")
    print("|" + "---|" * len(COLUMNS))
    failed, differences = [], {}
    for case in cases:
        fine, differences[case] = compare(case, ours[case], peer[case], 0 if case[0] == "full" else args.limit)
        if not fine:
            failed.append(case)
    for case, lines in differences.items():
        if lines:
            print(f"\n{' '.join(case)}:", *lines, sep="\n")
    for case in peer:
        if case not in cases:
            print(f"not compared: {' '.join(case)}")
    for case in failed:
        print(f"FAILED: {' '.join(case)}: too many samples graded differently")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
