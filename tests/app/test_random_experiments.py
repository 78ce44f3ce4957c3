"""A short form of tests/app/random_experiments.py, and proof that its checks can fail: results damaged in several ways are found.

KVLAB_FULL=1 runs 2,000 experiments in place of 60.
"""

import csv
import os
import tempfile
import unittest
from pathlib import Path

import random_experiments
from drawn_experiments import Draw

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("KVLAB_PROGRAM", ROOT / "build/release/kvlab"))
RUNS = 2000 if os.environ.get("KVLAB_FULL") else 60

# Preemptions, sessions and a timeline, so that each check has something to look at.
BUSY = {
    "model": "llama-3.1-8b", "hardware": "l40s", "scheduler": "vllm_v1", "memory": {"num_blocks": 120},
    "trace": {"generate": {"requests": 12, "arrival": {"poisson": {"rate_per_s": 20}}, "prompt_tokens": {"uniform": {"min": 100, "max": 900}}, "output_tokens": 60}},
    "slo": {"ttft_ms": 200}, "timeline_interval_ms": 100,
}
SPLIT = {**BUSY, "memory": {"num_blocks": 2000}, "pools": {"prefill": {"replicas": 1}, "decode": {"replicas": 1}}}


def edit(name, change):
    """Damage: change(rows) edits the rows of a table of the fast-forwarded results."""

    def damage(folder):
        path = Path(folder, "fast", name)
        with open(path, newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        rows = change(rows) or rows
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)

    return damage


def one_more(column, row=0):
    def change(rows):
        rows[row][column] = str(int(rows[row][column]) + 1)

    return change


def swapped(rows):
    rows[2]["first_token_ns"], rows[2]["scheduled_ns"] = rows[2]["scheduled_ns"], rows[2]["first_token_ns"]


def unequal_run(folder):
    path = next(Path(folder, "fast/runs").glob("*/requests.csv"))
    path.write_text(path.read_text().replace(",completed", ",rejected", 1))


@unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is not built: ./kvlab build")
class Drawn(unittest.TestCase):
    def test_results_of_drawn_experiments_hold_their_invariants(self):
        self.assertEqual(random_experiments.main(["--runs", str(RUNS), "--seed", "20261128", "--program", str(PROGRAM)]), 0)

    def test_equal_seeds_draw_equal_experiments(self):
        names, schema = random_experiments.names_of(PROGRAM), random_experiments.schema_of(PROGRAM)
        drawn = [Draw(schema, names, 5, i).experiment() for i in range(40)]
        self.assertEqual(drawn, [Draw(schema, names, 5, i).experiment() for i in range(40)])
        self.assertNotEqual(drawn, [Draw(schema, names, 6, i).experiment() for i in range(40)])

    def found(self, experiment, damage):
        with tempfile.TemporaryDirectory() as folder:
            return random_experiments.Trial(str(PROGRAM), 0, experiment, folder).run(damage).text

    def test_undamaged_results_pass(self):
        self.assertEqual([self.found(BUSY, None), self.found(SPLIT, None)], ["", ""])

    def test_damaged_results_are_found(self):
        damages = {
            "a lost request": (BUSY, edit("requests.csv", lambda rows: rows[1:])),
            "a request twice": (BUSY, edit("requests.csv", lambda rows: rows + rows[:1])),
            "a token too many": (BUSY, edit("requests.csv", one_more("output_tokens"))),
            "instants that go backwards": (BUSY, edit("requests.csv", swapped)),
            "a lost block": (BUSY, edit("timeline.csv", one_more("used_blocks", 1))),
            "more completed than there are": (BUSY, edit("summary.csv", one_more("completed"))),
            "a byte that does not arrive": (SPLIT, edit("links.csv", one_more("bytes"))),
            "a step simulated otherwise": (BUSY, unequal_run),
        }
        for name, (experiment, damage) in damages.items():
            with self.subTest(name):
                self.assertNotEqual(self.found(experiment, damage), "", name)


if __name__ == "__main__":
    unittest.main()
