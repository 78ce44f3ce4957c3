"""Graded answers: plots/accuracy.py and plots/replay_predicts.py. Run: python3 tests/plots/test_accuracy.py"""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import replay_predicts  # noqa: E402
import synthetic  # noqa: E402
from figure_case import FigureTest, write_graded  # noqa: E402


class Accuracy(FigureTest):
    # {recipe: snapkv, budget_tokens: 512, allocator: pyramid} beside {recipe: [snapkv, h2o], budget_tokens: [128, 512]}, tova at one of them
    MIXED = (("full", "", "", 1.0), ("snapkv 512 allocator pyramid", "", "", 0.75), ("2", "snapkv", 128, 0.25), ("2", "snapkv", 512, 0.5), ("2", "h2o", 128, 0.0),
             ("2", "h2o", 512, 0.25), ("tova 128", "", "", 0.5), ("recipe", "kivi2", "", 1.0))

    def rows_of(self, figure):
        return [t.get_text() for t in self.axes(figure)[0].get_yticklabels()]

    def test_variants_have_names_and_rows_their_own_budget(self):
        write_graded(self.folder, self.MIXED)
        _, notes = self.draw(write=False)
        self.assertEqual(self.rows_of("accuracy_tasks_budget_tokens_128"), ["Full cache", "SnapKV", "H2O", "TOVA", "KIVI-2"])
        self.assertEqual([t.get_text() for t in self.axes("accuracy_tasks_budget_tokens_128")[0].texts], ["100", "100", "25", "25", "0", "0", "50", "50", "100", "100"])
        self.assertEqual([t.get_text() for t in self.axes("accuracy_tasks_budget_tokens_128")[0].get_xticklabels()], ["NA", "copy"])
        self.assertEqual(notes, ["accuracy_tasks_budget_tokens_128: budget of 128 tokens, 1 of 2 drawn; without snapkv (allocator pyramid), which has other budgets"])
        self.draw(every=True, write=False)
        self.assertEqual(self.rows_of("accuracy_tasks_budget_tokens_512"), ["Full cache", "SnapKV (allocator pyramid)", "SnapKV", "H2O", "KIVI-2"])

    def test_divergence_is_per_token_and_its_mean_over_answers(self):
        write_graded(self.folder, self.MIXED[1:2])
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str}, keep_default_na=False)
        rows.assign(num_answers=[4, 12], kl_to_full=[0.1, 0.5]).to_csv(self.folder / "summary.csv", index=False)
        self.draw(write=False)
        right = self.axes("accuracy_bytes")[1]
        self.assertAlmostEqual(right.lines[0].get_ydata()[0], 0.4)
        self.assertEqual(right.get_ylabel(), "KL to the full cache\n(nats per token, mean over answers)")

    def test_other_axes_have_figures_of_their_own(self):
        write_graded(self.folder, [(*p, q) for q in ("compressed", "decoded") for p in self.MIXED[:4]], more=["question"])
        names, notes = self.draw(write=False)
        self.assertEqual(names, ["accuracy_bytes_question_compressed", "accuracy_tasks_question_compressed_budget_tokens_512",
                                 "accuracy_bytes_question_decoded", "accuracy_tasks_question_decoded_budget_tokens_512", "summary.tex"])
        self.assertEqual(notes[0], "accuracy_bytes_question_compressed: question compressed")

    def test_of_many_values_a_few(self):
        write_graded(self.folder, [("snapkv 64", "", "", 1.0, f"m{i}") for i in range(6)], more=["model"])
        _, notes = self.draw(write=False)
        self.assertEqual(notes[0], "accuracy_bytes_model_m0: model m0; 4 of 6 values of model drawn")
        self.assertEqual(len(self.drawn), 8)

    def test_table(self):
        write_graded(self.folder, self.MIXED)
        self.draw(write=False)
        text = (self.folder / "figures" / "summary.tex").read_text()
        self.assertIn(r"recipe & budget & answers & right (\%) & 95\,\% interval & mean over tasks (\%) & KL (nats/token) & bytes \\", text)
        self.assertIn(r"SnapKV (allocator pyramid) & 512 & 8 & 75.0 & 40.9 to 92.9 & 75.0 & 0.500 & 0.100 \\", text)  # Wilson's interval of 6 of 8
        self.assertIn(r"KIVI-2 & -- & 8 & 100.0 & 67.6 to 100.0 &", text)


class ReplayPredicts(FigureTest):
    def setUp(self):
        super().setUp()
        synthetic.write_predictions(self.folder)

    def numbers(self):
        rows = pd.read_csv(self.folder / "figures" / "replay_predicts.csv")
        return rows[rows["against"] == "drop"].set_index(["measure", "task"])

    def test_figure_and_numbers(self):
        names, _ = self.draw()
        self.assertIn("replay_predicts", names)
        numbers = self.numbers()
        self.assertEqual(numbers.loc[("needle_found_frac", "niah"), "spearman"], 1)
        self.assertEqual(numbers.loc[("needle_found_frac", "pooled"), "recipes"], 10)  # freq has no needles
        self.assertEqual(numbers.loc[("needle_mass_kept", "pooled"), "recipes"], 20)
        self.assertNotIn(("needle_found_frac", "freq"), numbers.index)
        self.assertAlmostEqual(numbers.loc[("needle_mass_kept", "niah"), "spearman"], numbers.loc[("needle_mass_kept", "niah"), "untied_ceiling"])

    def test_other_axes_have_figures_and_numbers_of_their_own(self):
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str})
        rows = pd.concat([rows.assign(question="compressed"), rows.assign(question="decoded")])
        rows[["run", "question", *[c for c in rows.columns if c not in ("run", "question")]]].to_csv(self.folder / "summary.csv", index=False)
        names, _ = self.draw(write=False)
        for at in ("compressed", "decoded"):
            self.assertIn(f"replay_predicts_question_{at}", names)
            self.assertTrue((self.folder / "figures" / f"replay_predicts_question_{at}.csv").exists())

    def test_untied_ceiling_by_hand(self):
        self.assertEqual(replay_predicts.untied_ceiling(pd.Series([1.0, 2, 3, 4])), 1)
        # Two pairs of four: ranks 1.5, 1.5, 3.5, 3.5 against 1 to 4.
        self.assertAlmostEqual(replay_predicts.untied_ceiling(pd.Series([0.0, 0, 1, 1])), np.corrcoef([1.5, 1.5, 3.5, 3.5], [1, 2, 3, 4])[0, 1])
        self.assertTrue(np.isnan(replay_predicts.untied_ceiling(pd.Series([0.5, 0.5]))))


if __name__ == "__main__":
    unittest.main()
