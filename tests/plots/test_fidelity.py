"""Fidelity of replays: plots/fidelity.py. Run: python3 tests/plots/test_fidelity.py"""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import pandas as pd  # noqa: E402

import families  # noqa: E402
import fidelity  # noqa: E402
import synthetic  # noqa: E402
from figure_case import FigureTest  # noqa: E402


class ManyPolicies(FigureTest):
    def test_twelve_have_a_colour_and_the_others_are_named(self):
        synthetic.write_replay(self.folder, budgets=(128,))
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str})
        more = pd.concat([rows[rows["recipe"] == "snapkv"].assign(recipe=f"policy_{i:02}", run=f"9{i:03}", attention_mass=0.5 + i / 100) for i in range(20)])
        pd.concat([rows, more]).to_csv(self.folder / "summary.csv", index=False)
        self.draw(write=False)
        (note,) = self.texts("fidelity_bytes")
        self.assertIn("In grey: policy_", note)
        grey = note[note.index("In grey") :].count("policy_")
        entries = [t for t in self.legend("fidelity_bytes") if t and not t.endswith(":") and t not in ("Pareto front", "hollow: rest in CPU memory")]
        self.assertEqual((len(entries), len(entries) + grey), (12, 26))  # full, snapkv, streaming, random, kivi2 and offload are the others
        for name in ("Full cache", "Random", "KIVI-2"):
            self.assertIn(name, entries)
        self.drawn.clear()
        self.draw(write=False, overrides=["figures.fidelity_bytes.only=[policy_03, SnapKV]"])
        self.assertEqual([t for t in self.legend("fidelity_bytes") if t and not t.endswith(":")], ["SnapKV", "policy_03", "Pareto front"])

    def test_families_are_told_apart_without_colour(self):
        self.assertEqual(len(set(families.MARKERS.values())), len(families.FAMILIES))


class Replay(FigureTest):
    OVER = ("fidelity_bytes", "fidelity_attended")

    def test_figures_and_a_table(self):
        synthetic.write_replay(self.folder)
        names, notes = self.draw()
        self.assertEqual(names, [*self.OVER, "fidelity_heads_budget_tokens_128", "fidelity_steps_budget_tokens_128", "needles", "summary.tex"])
        self.assertIn("fidelity_heads_budget_tokens_128: budget of 128 tokens, 1 of 2 drawn", notes)
        self.assert_labelled_with_units()
        self.assert_fits_a_column(self.OVER)
        self.assertIn("SnapKV & 512 & 0.961 &", (self.folder / "figures" / "summary.tex").read_text())

    def test_every_budget_and_one_recipe_head_by_head(self):
        synthetic.write_replay(self.folder, budgets=(64, 128, 256))
        names, _ = self.draw(every=True, write=False, recipe="snapkv")
        self.assertEqual(len([n for n in names if n.startswith("fidelity_heads_budget")]), 3)
        panels = self.axes("fidelity_heads_snapkv")
        self.assertEqual([a.get_title() for a in panels], ["64 tokens", "128 tokens", "256 tokens"])
        self.assertEqual([t.get_text() for t in panels[0].texts], [".69", ".68", ".68", ".67", ".67", ".66"])  # 1 - 20/64 less 0.01 per layer and head
        self.assert_fits_a_column(self.OVER)

    def test_bytes_leave_out_selectors_that_keep_all_and_the_front_what_is_elsewhere(self):
        synthetic.write_replay(self.folder)
        self.draw(write=False)
        self.assertNotIn("Quest", self.legend("fidelity_bytes"))
        self.assertIn("offload", self.legend("fidelity_bytes"))
        self.assertIn("Quest", self.legend("fidelity_attended"))
        self.assertNotIn("KIVI-2", self.legend("fidelity_attended"))
        left, right = self.axes("fidelity_bytes")
        self.assertEqual([t.get_text() for t in left.texts], ["SnapKV", "KIVI-2"])
        self.assertEqual([t.get_text() for t in right.texts], ["KIVI-2", "SnapKV"])

    def test_needles_in_percent(self):
        synthetic.write_replay(self.folder)
        self.draw(write=False)
        upper, lower = self.axes("needles")
        self.assertEqual([t.get_text() for t in upper.texts], ["6", "26", "13", "51", "4", "17"])  # by family: streaming, snapkv, random
        self.assertEqual([t.get_text() for t in upper.get_xticklabels()], ["128", "512"])
        self.assertEqual([t.get_text() for t in lower.texts], ["90 (128)"] * 2 + ["90 (512)"] * 2)

    def test_unequal_budgets_stand_under_their_own(self):
        synthetic.write_replay(self.folder, budgets=(128, 256, 512))
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str})
        rows[(rows["recipe"] != "snapkv") | (rows["budget_tokens"] == 512)].to_csv(self.folder / "summary.csv", index=False)
        _, notes = self.draw(write=False)
        heads = self.axes("fidelity_heads_budget_tokens_512")[0]
        self.assertEqual([t.get_text() for t in heads.get_yticklabels()], ["StreamingLLM", "SnapKV", "Quest", "offload", "Random"])
        self.assertIn("fidelity_heads_budget_tokens_512: budget of 512 tokens, 1 of 3 drawn", notes)
        upper = self.axes("needles")[0]
        self.assertEqual([t.get_text() for t in upper.get_xticklabels()], ["128", "256", "512"])
        self.assertEqual([t.get_position()[0] for t in upper.texts if t.get_position()[1] == 1], [2])  # snapkv

    def test_pareto_front_by_hand(self):
        self.assertEqual(fidelity.pareto([3, 1, 2, 2, 4], [5, 1, 4, 3, 5]), [1, 2, 0])
        self.assertEqual(fidelity.pareto([], []), [])

    def keep_only(self, *recipes):
        table = pd.read_csv(self.folder / "summary.csv", dtype={"run": str})
        table[table["recipe"].isin(recipes)].to_csv(self.folder / "summary.csv", index=False)

    def test_selectors_alone_have_no_figure_over_bytes(self):
        for recipes in (("quest",), ("quest", "offload")):
            synthetic.write_replay(self.folder)
            self.keep_only(*recipes)
            names, _ = self.draw(write=False)
            self.assertEqual([n for n in names if n in self.OVER], list(self.OVER[2 - len(recipes):]))

    def test_what_keeps_no_bytes_has_no_place_over_bytes(self):
        synthetic.write_replay(self.folder)
        table = pd.read_csv(self.folder / "summary.csv", dtype={"run": str})
        table.loc[table["recipe"] == "offload", "resident_bytes_frac"] = 0.0
        table.to_csv(self.folder / "summary.csv", index=False)
        _, notes = self.draw(write=False)
        self.assertNotIn("offload", self.legend("fidelity_bytes"))
        self.assertIn("fidelity_bytes: selectors that keep all bytes are in fidelity_attended; without what keeps no bytes on the GPU: offload", notes)
        self.keep_only("offload")
        names, _ = self.draw(write=False)
        self.assertNotIn("fidelity_bytes", names)

    def test_full_cache_alone(self):
        synthetic.write_replay(self.folder, budgets=())
        self.keep_only("full")
        names, _ = self.draw(write=False)
        self.assertEqual(names[0], "fidelity_bytes")


if __name__ == "__main__":
    unittest.main()
