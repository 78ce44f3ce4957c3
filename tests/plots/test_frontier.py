"""Figures of two folders: plots/frontier.py. Run: python3 tests/plots/test_frontier.py"""

import contextlib
import io
import sys
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

import frontier  # noqa: E402
import load  # noqa: E402
import plot  # noqa: E402
import policies  # noqa: E402
import style  # noqa: E402
import synthetic  # noqa: E402
from figure_case import SCHEDULERS, FigureTest, overlap, write_graded  # noqa: E402


class JointFigures(FigureTest):
    """./kvlab plot A B"""

    def plot(self, *folders):
        heard = io.StringIO()
        with contextlib.redirect_stderr(heard), mock.patch.object(Figure, "savefig"):
            status = plot.main([str(f) for f in folders])
        return status, heard.getvalue().splitlines()

    def test_one_line_says_that_there_is_none_and_why(self):
        graded = write_graded(self.folder / "graded", (("full", "", "", 1.0), ("snapkv 64", "", "", 0.5)))
        served = synthetic.write_runs(self.folder / "served", {"scheduler": SCHEDULERS[:2]}, num_requests=10)
        status, lines = self.plot(graded, served)
        self.assertEqual(status, 0)
        self.assertEqual(lines[-1], f"kvlab: no joint figure: no KV policy is in both folders, by recipe and budget: {graded} has snapkv 64, full; {served} serves one policy", lines)
        cached = synthetic.write_hit_ratios(self.folder / "cached")
        status, lines = self.plot(graded, cached)
        self.assertEqual((status, lines[-1]), (0, "kvlab: no joint figure: one folder of graded answers or a replay is joined with one of a serving experiment; "
                                                  f"{graded} has graded answers, {cached} has hit ratios"))
        status, lines = self.plot(served)
        self.assertFalse(any("joint" in line for line in lines))


class Frontier(FigureTest):
    """Answers of two budgets beside a served experiment whose policies share one: {recipe: [snapkv, h2o], budget_tokens: 128}."""

    GRADED = (("1", "snapkv", 128, 0.5), ("1", "snapkv", 512, 0.9), ("1", "h2o", 128, 0.3), ("full", "", "", 1.0))

    def write(self, served, graded=GRADED, hosts=("sim", "engine"), budget="budget_tokens"):
        folder = self.folder / "served"
        folder.mkdir(parents=True)
        write_graded(self.folder / "graded", graded, budget)
        rows = [[f"{i:04}", host, load_frac, *policy, 1, 2.0 + i, 100.0 + i]
                for i, (load_frac, policy, host) in enumerate((f, p, h) for f in (0.3, 0.8) for p in served for h in hosts)]
        synthetic.write_csv(folder / "summary.csv", ["run", "host", "load_frac", "kv_policy", "kv_policy.recipe", "seed", "tpot_mean_ms", "e2e_mean_ms"], rows)
        return load.load(self.folder / "graded"), load.load(folder)

    def test_joins_by_recipe_and_budget_at_the_lowest_load(self):
        points, note = frontier.points_of(*self.write((("full", ""), ("budget_tokens 128", "snapkv"), ("budget_tokens 128", "h2o"), ("tova 64", ""))))
        points = points.set_index("name")
        self.assertEqual(list(points.index), ["full", "snapkv 128", "h2o 128"])
        self.assertEqual(list(points["exact_match_frac"]), [1.0, 0.5, 0.3])
        self.assertEqual(points.loc["snapkv 128", "tpot_mean_ms_sim"], 4.0)
        self.assertEqual(points.loc["snapkv 128", "e2e_mean_ms_engine"], 103.0)
        self.assertEqual(note, "at load_frac 0.3; only graded: snapkv 512; only served: tova 64")

    def test_places_in_a_list_are_not_joined(self):
        lists = ("snapkv 128#2", "snapkv 128#3")
        points, note = frontier.points_of(*self.write((("full", ""), *((at, "") for at in lists)), (("full", "", "", 1.0), *((at, "", "", 0.5) for at in lists))))
        self.assertEqual(list(points["name"]), ["full"])
        names = "snapkv (snapkv 128#2) 128, snapkv (snapkv 128#3) 128"
        self.assertEqual(note, f"at load_frac 0.3; only graded: {names}; only served: {names}")

    def test_shares_of_the_prompt_are_budgets_too(self):
        graded = (("1", "snapkv", 0.1, 0.5), ("1", "snapkv", 0.2, 0.9))
        points, _ = frontier.points_of(*self.write((("budget_frac 0.1", "snapkv"), ("snapkv 0.2", "")), graded, budget="budget_frac"))
        self.assertEqual(dict(zip(points["name"], points["exact_match_frac"])), {"snapkv budget_frac 0.1": 0.5, "snapkv budget_frac 0.2": 0.9})

    def test_labels_of_lists_name_shares_by_their_key(self):
        rows = pd.DataFrame({"kv_policy": ["snapkv budget_frac 1", "snapkv 1", "snapkv 0.5"], "recipe": ["snapkv"] * 3})
        self.assertEqual(list(policies.add_names(rows, ["kv_policy"])["budget"]), ["budget_frac 1", "budget_tokens 1", "budget_frac 0.5"])

    def test_a_policy_on_one_host_and_axes_that_a_run_does_not_have(self):
        graded, served = self.write((("full", ""), ("budget_tokens 128", "snapkv")))
        rows = served.summary
        rows["scheduler.chunk_tokens"] = [np.nan, np.nan, np.nan, np.nan, 64.0, 64.0, 64.0, 64.0]
        rows["load_frac"] = 0.3
        served.axes.append("scheduler.chunk_tokens")
        served.summary = rows[~((rows["policy"] == "snapkv") & (rows["host"] == "sim"))]
        points, note = frontier.points_of(graded, served)
        self.assertEqual(list(points["name"]), ["full"])
        self.assertEqual(note, "at load_frac 0.3; on one host only: snapkv 128; only graded: snapkv 512, h2o 128")

    def test_answers_are_of_one_value_of_other_axes_and_weighted_as_in_accuracy(self):
        graded, served = self.write((("full", ""), ("budget_tokens 128", "snapkv")))
        other = graded.summary.assign(question="decoded", exact_match_frac=0.0)
        longer = graded.summary.assign(question="compressed", length=2048, num_answers=1, exact_match_frac=0.0)
        graded.summary = pd.concat([graded.summary.assign(question="compressed"), other, longer])
        graded.axes.append("question")
        points, note = frontier.points_of(graded, served)
        self.assertEqual(list(points["exact_match_frac"].round(6)), [round(1.0 * 4 / 5, 6), round(0.5 * 4 / 5, 6)])
        self.assertIn("at load_frac 0.3; answers of question compressed;", note)

    def test_lists_of_recipes_with_and_without_a_list_around_them(self):
        """{recipe: [a, b]} alone has no axis kv_policy; two lists with one budget are told apart by '#'."""
        self.folder.mkdir(parents=True)
        for columns, rows, named in ((["kv_policy.recipe"], (["snapkv"], ["h2o"]), None),
                                     (["kv_policy", "kv_policy.recipe"], (["budget_tokens 64#1", "snapkv"], ["budget_tokens 64#2", "h2o"]), ["snapkv 64", "h2o 64"]),
                                     (["kv_policy", "kv_policy.recipe"], (["budget_tokens 64#1", "snapkv"], ["budget_tokens 64#2", "snapkv"]),
                                      ["snapkv (budget_tokens 64#1) 64", "snapkv (budget_tokens 64#2) 64"])):
            synthetic.write_csv(self.folder / "summary.csv", ["run", *columns, "seed", "ttft_p50_ms"], [[f"{i:04}", *row, 1, 2.0] for i, row in enumerate(rows)])
            results = load.load(self.folder)
            self.assertEqual(results.axes, ["kv_policy"] if named else columns)
            if named:
                self.assertEqual(list(results.summary["kv_policy"]), named)

    def test_names_keep_their_distance(self):
        self.assertEqual(frontier.spread([0.0, 0.5, 0.9], 0.1, 1), [0.0, 0.5, 0.9])
        np.testing.assert_allclose(frontier.spread([0.0, 0.0, 0.05, 0.9], 0.1, 1), [0.0, 0.1, 0.2, 0.9])
        np.testing.assert_allclose(frontier.spread([0.5, 0.95, 1.0, 1.0], 0.1, 1), [0.5, 0.8, 0.9, 1.0])

    def test_figure_of_both_folders(self):
        self.write((("full", ""), ("budget_tokens 128", "snapkv")))
        drawn = plot.draw_joint([self.folder / "graded", self.folder / "served"])
        self.assertEqual((drawn.names, drawn.notes), (["frontier"], ["frontier: at load_frac 0.3; only graded: snapkv 512, h2o 128"]))
        for kind in ("pdf", "png"):
            self.assertGreater((drawn.folder / f"frontier.{kind}").stat().st_size, 2000)

    def test_labels_of_long_latencies_are_in_seconds_and_apart(self):
        graded, served = self.write((("full", ""), ("budget_tokens 128", "snapkv")))
        served.summary["e2e_mean_ms"] += 120_000
        with mock.patch.object(style.plt, "close"), mock.patch.object(Figure, "savefig"), mock.patch.object(style, "save", wraps=style.save) as save:
            list(frontier.draw(graded, served, self.folder))
        figure = save.call_args.args[0]
        axis = figure.axes[1]
        self.assertEqual(axis.get_xlabel(), "End-to-end latency (s)")
        figure.canvas.draw()
        boxes = [t.get_window_extent() for t in axis.get_xticklabels() if t.get_text() and axis.get_xlim()[0] <= t.get_position()[0] <= axis.get_xlim()[1]]
        self.assertGreater(len(boxes), 2)
        for a, b in zip(boxes, boxes[1:]):
            self.assertFalse(overlap(a, b))

    def test_folders_without_a_common_policy_have_no_figure(self):
        self.write((("budget_tokens 64", "snapkv"),))
        drawn = plot.draw_joint([self.folder / "graded", self.folder / "served"])
        self.assertEqual(drawn.names, [])
        for text in ("no joint figure: no KV policy is in both folders", "snapkv 512", "serves snapkv 64"):
            self.assertIn(text, drawn.notes[0])
        synthetic.write_csv(self.folder / "served" / "summary.csv", ["run", "host", "seed", "tpot_mean_ms", "e2e_mean_ms"], [["0001", "sim", 1, 2.0, 3.0]])
        self.assertIn("serves one policy", plot.draw_joint([self.folder / "graded", self.folder / "served"]).notes[0])


if __name__ == "__main__":
    unittest.main()
