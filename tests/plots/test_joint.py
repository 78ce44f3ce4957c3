"""Tests of the figures of two folders: graded answers or a replay, joined with a serving experiment. Run: python3 tests/plots/test_joint.py"""

import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

import budgets  # noqa: E402
import joint  # noqa: E402
import joint_serving  # noqa: E402
import load  # noqa: E402
import plot  # noqa: E402
import settings  # noqa: E402
import style  # noqa: E402
import synthetic  # noqa: E402

RATE = "trace.generate.arrival.poisson.rate_per_s"
SERVED = ("goodput_per_s", "output_tokens_per_s", "tpot_mean_ms", "ttft_p50_ms")


def write_graded(folder, policies, key="budget_tokens", prompt=1000):
    """Four answers on each of two tasks, for each (recipe, budget, right answers); a budget of None is no budget."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for i, (recipe, budget, right) in enumerate(policies):
        tokens = prompt if budget is None else budget if key == "budget_tokens" else prompt * budget
        for task in ("niah", "copy"):
            answers = [recipe, tokens, task, 1024, 4, right, 0.5, 0.7, 0.1, 0, 1, 1.0, *[""] * 7, "reference" if recipe == "full" else "attention"]
            rows.append([f"{i:04}", recipe, "" if budget is None else budget, 1, *answers])
    synthetic.write_csv(folder / "summary.csv", ["run", "kv_policy.recipe", f"kv_policy.{key}", "seed", *synthetic.GRADED], rows)
    (folder / "manifest.json").write_text(json.dumps({"runs": [{"model": "../engine/probe"}]}))
    return folder


def write_served(folder, policies, rates=(1.0, 2.0, 4.0), seeds=(1,), prompt=2000, axes=("kv_policy",)):
    """Policy number p at rate r and seed s: goodput is best at the middle rate, output grows with the rate, time per token too."""
    folder.mkdir(parents=True, exist_ok=True)
    rows, requests = [], []
    for p, policy in enumerate(policies):
        for r, rate in enumerate(rates):
            for seed in seeds:
                run = f"{len(rows):04}"
                noise = 0.1 * (seed - np.mean(seeds))
                rows.append([run, rate, *policy, seed, 10 * (p + 1) + (0, 5, 1)[r] + noise, 100 * (p + 1) + r, 20 + p + r, 50])
                requests.append([run, 0, 0, "", 0, 0, 1, 2, 3, prompt, 2, 0, 0, 0, "completed"])
    synthetic.write_csv(folder / "summary.csv", ["run", RATE, *axes, "seed", *SERVED], rows)
    synthetic.write_csv(folder / "requests.csv", synthetic.REQUESTS, requests)
    (folder / "manifest.json").write_text(json.dumps({"runs": [{"model": "llama-3.1-8b", "hardware": "L40S"}]}))
    return folder


class Budgets(unittest.TestCase):
    def test_equal_budgets_of_one_key_are_joined_and_others_of_it_are_not(self):
        left = [("snapkv", "budget_tokens 128"), ("snapkv", "budget_tokens 512"), ("full", ""), ("h2o", "budget_tokens 130")]
        right = [("snapkv", "budget_tokens 128"), ("full", ""), ("h2o", "budget_tokens 128")]
        found = budgets.matches(left, right, (1000, 1000))
        self.assertEqual([(m.policy, m.left, m.right, m.how) for m in found], [("snapkv", "budget_tokens 128", "budget_tokens 128", ""), ("full", "", "", "")])

    def test_budgets_of_two_keys_are_joined_by_the_share_of_the_prompt_within_a_tenth(self):
        left = [("snapkv", "budget_frac 0.25"), ("h2o", "compression_ratio 0.75"), ("tova", "budget_frac 0.25")]
        right = [("snapkv", "budget_tokens 512"), ("snapkv", "budget_tokens 540"), ("h2o", "budget_tokens 512"), ("tova", "budget_tokens 600")]
        found = budgets.matches(left, right, (None, 2000))
        self.assertEqual([(m.policy, m.right) for m in found], [("snapkv", "budget_tokens 512"), ("h2o", "budget_tokens 512")])
        self.assertEqual(found[0].how, "budget_frac 0.25 with 512 tokens (25.6 % of the prompt)")
        self.assertEqual(budgets.matches(left, right, (None, None)), [])  # nobody knows the share of 512 tokens

    def test_the_rule_share_joins_equal_shares_of_unequal_prompts(self):
        left, right = [("snapkv", "budget_tokens 128")], [("snapkv", "budget_tokens 128"), ("snapkv", "budget_tokens 256")]
        self.assertEqual(budgets.matches(left, right, (1000, 2000), "share")[0].right, "budget_tokens 256")
        self.assertEqual(budgets.matches(left, right, (1000, 2000), "budget")[0].right, "budget_tokens 128")


class JointCase(unittest.TestCase):
    GRADED = (("full", None, 1.0), ("snapkv", 128, 0.75), ("snapkv", 512, 0.9), ("h2o", 128, 0.25))

    def setUp(self):
        self.top = Path(tempfile.mkdtemp(prefix="kvlab_joint_"))
        self.addCleanup(shutil.rmtree, self.top)
        self.addCleanup(style.plt.close, "all")

    def pair(self, served=(("full",), ("snapkv 128",), ("h2o 128",), ("tova 64",)), graded=GRADED, **options):
        folders = write_graded(self.top / "graded", graded), write_served(self.top / "served", served, **options)
        settings.start(folders[1])
        return [load.load(f) for f in folders]

    def figure(self, *pair):
        with mock.patch.object(Figure, "savefig"), mock.patch.object(style.plt, "close"), mock.patch.object(style, "save", wraps=style.save) as save:
            list(joint_serving.draw(*pair, self.top / "figures"))
        figure = save.call_args.args[0]
        figure.canvas.draw()
        return figure


class Marks(JointCase):
    """Budgets at the marks, and any column as a metric."""

    SERVED = (("full",), ("snapkv 128",), ("snapkv 512",), ("h2o 128",))

    def test_marks_of_several_budgets_carry_them(self):
        figure = self.figure(*self.pair(served=self.SERVED))
        for axis in figure.axes:
            self.assertEqual(sorted(t.get_text() for t in axis.texts if t.get_text().isdigit()), ["128", "128", "512"])
        self.assertIn("Numbers at marks: the budget (tokens per layer and KV head).", " ".join(t.get_text().replace("\n", " ") for t in figure.texts))

    def test_one_budget_is_in_the_note_alone(self):
        figure = self.figure(*self.pair())
        self.assertFalse(any(t.get_text().isdigit() for axis in figure.axes for t in axis.texts))
        self.assertIn("equal budget: 128 tokens", figure.texts[-1].get_text().replace("\n", " "))

    def with_columns(self, **values):
        self.pair(served=self.SERVED)
        path = self.top / "served" / "summary.csv"
        pd.read_csv(path, dtype={"run": str}).assign(**values).to_csv(path, index=False)
        settings.start(self.top / "served", ["figures.accuracy_serving.metric=[search_concurrency]"])
        return [load.load(self.top / f) for f in ("graded", "served")]

    def test_every_column_with_numbers_is_a_metric(self):
        (axis,) = self.figure(*self.with_columns(search_concurrency=7)).axes
        self.assertIn("Most users within the SLO (at the best load, users)", axis.get_xlabel().replace("\n", " "))
        self.assertLessEqual(axis.get_xlabel().count("\n"), 1)

    def test_a_policy_for_which_a_search_found_nothing_is_named(self):
        found = joint_serving.joined(*self.with_columns(search_concurrency=[7.0 if i > 2 else None for i in range(12)]), "accuracy_serving")
        self.assertEqual((len(found.points), found.notes[0]), (3, "No number of most users within the SLO: Full cache."))

    def test_a_column_without_numbers_is_refused_by_name(self):
        with self.assertRaisesRegex(load.ResultsError, "column 'search_concurrency' of summary.csv has no numbers here; columns with numbers: .*goodput_per_s"):
            joint_serving.joined(*self.with_columns(search_concurrency=None), "accuracy_serving")


class Joint(JointCase):
    def test_metrics_are_taken_at_the_best_highest_and_lowest_load(self):
        found = joint_serving.joined(*self.pair(), "accuracy_serving")
        points = found.points.set_index("name").sort_index()
        self.assertEqual(list(points.index), ["full", "h2o", "snapkv"])
        self.assertEqual(list(points["kept"]), [1.0, 0.25, 0.75])
        self.assertEqual(list(points["goodput_per_s"]), [15, 35, 25])
        self.assertEqual(list(points["output_tokens_per_s"]), [102, 302, 202])
        self.assertEqual(list(points["tpot_mean_ms"]), [20, 22, 21])
        self.assertEqual(list(points["n"]), [4, 4, 4])

    def test_notes_name_the_rule_and_what_is_in_one_folder_only(self):
        notes = joint_serving.joined(*self.pair(), "accuracy_serving").notes
        self.assertEqual(notes, ["Joined by recipe and equal budget: 128 tokens, 12.8 % of the graded prompts and 6.4 % of those served.",
                                 "Serving: n = 1 seed, no interval.", "Only graded: SnapKV 512.", "Only served: TOVA 64."])

    def test_shares_are_joined_with_tokens_and_the_note_says_so(self):
        write_graded(self.top / "graded", (("full", None, 1.0), ("snapkv", 0.25, 0.5)), key="budget_frac")
        write_served(self.top / "served", (("full",), ("snapkv 512",)))
        pair = [load.load(self.top / name) for name in ("graded", "served")]
        settings.start(self.top / "served")
        found = joint_serving.joined(*pair, "accuracy_serving")
        self.assertEqual(sorted(found.points["name"]), ["full", "snapkv"])
        self.assertIn("Joined by the share of the prompt, within 10 %: SnapKV: budget_frac 0.25 with 512 tokens (25.6 % of the prompt).", found.notes)

    def test_a_budget_that_all_runs_share_is_no_axis_and_counts(self):
        graded, served = self.pair((("snapkv",), ("h2o",)), axes=("kv_policy.recipe",))
        (self.top / "served" / "resolved.yaml").write_text("kv_policy: {recipe: [snapkv, h2o], budget_tokens: 128}\n")
        points = joint_serving.joined(graded, served, "accuracy_serving").points
        self.assertEqual(sorted(zip(points["name"], points["budget"])), [("h2o", "budget_tokens 128"), ("snapkv", "budget_tokens 128")])

    def test_labels_name_both_models_and_the_gpu_and_the_note_that_they_differ(self):
        figure = self.figure(*self.pair(seeds=(1, 2, 3)))
        axes = figure.axes
        self.assertEqual(axes[0].get_ylabel(), "Right answers (mean over tasks)\nof the model KVLab probe")
        for axis in axes:
            self.assertTrue(axis.get_xlabel().endswith("simulated: Llama-3.1-8B on L40S"), axis.get_xlabel())
        note = " ".join(t.get_text().replace("\n", " ") for t in figure.texts)
        self.assertIn("Two models: Llama-3.1-8B was served, and nothing was graded on it.", note)
        self.assertIn("n = 4 answers or more per task; bars are 95 % intervals.", note)
        self.assertIn("Serving: Mean and 95 % t-interval over n = 3 seeds.", note)
        left, right = axes[2].get_xlim()
        self.assertGreater(left, right, "times fall to the right, where more goodput is")
        self.assertTrue(any(axes[0].containers), "no intervals")

    def test_a_replay_gives_attention_kept(self):
        replay = synthetic.write_replay(self.top / "replay")
        served = write_served(self.top / "served", (("full",), ("snapkv 128",), ("kivi2",)))
        drawn = plot.draw_joint([replay, served])
        self.assertEqual(drawn.names, ["fidelity_serving"])
        for form in ("pdf", "png"):
            self.assertGreater((served / "figures" / f"fidelity_serving.{form}").stat().st_size, 2000)

    def test_metrics_can_be_chosen(self):
        graded, served = self.pair()
        settings.start(served.folder, ["figures.accuracy_serving.metric=[ttft_p50_ms]"])
        found = joint_serving.joined(graded, served, "accuracy_serving")
        self.assertEqual([(m.column, m.load, m.more_is_better) for m in found.metrics], [("ttft_p50_ms", "lowest", False)])
        settings.start(served.folder, ["figures.accuracy_serving.metric=[ttft_p51_ms]"])
        with self.assertRaisesRegex(load.ResultsError, "did you mean 'ttft_p50_ms'"):
            joint_serving.joined(graded, served, "accuracy_serving")


W8, W32 = {"window_tokens": "8"}, {"window_tokens": "32"}
SECOND, THIRD = (f"snapkv 128 scorer window_attention#{place}" for place in (2, 3))


def write_entries(folder, *second_and_third):
    """Adds the parameters of the second and the third entry of a list to a folder's manifest, as the program does."""
    path = folder / "manifest.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(found | {"entries": {"kv_policy": dict(zip((SECOND, THIRD), second_and_third))}}))
    return folder


class ListEntries(JointCase):
    """Entries of one recipe, which the rows of a folder tell apart by their place in its list; the two lists are in opposite order."""

    def replay(self):
        """Keeps 0.8 with a window of 8, and 0.6 with one of 32."""
        rows = [[f"{i}", label, 1, *synthetic.replay_row(label.split()[0], family, 128, 128, mass, 0.1, 0.2, 1.0)]
                for i, (label, family, mass) in enumerate((("full", "reference", 1.0), (SECOND, "attention", 0.8), (THIRD, "attention", 0.6)))]
        (self.top / "replay").mkdir()
        synthetic.write_csv(self.top / "replay" / "summary.csv", ["run", "kv_policy", "seed", *synthetic.REPLAY], rows)
        return write_entries(self.top / "replay", W8, W32)

    def points_drawn(self, replay, served):
        """{policy: (kept, goodput)} of the figure that `kvlab plot` draws."""
        found, joined = [], joint_serving.joined
        with mock.patch.object(Figure, "savefig"), mock.patch.object(joint_serving, "joined", lambda *given: found.append(joined(*given)) or found[-1]):
            drawn = plot.draw_joint([replay, served])
        self.assertEqual(drawn.failures, [])
        self.notes = drawn.notes
        return {p.name: (p.kept, p.goodput_per_s) for p in found[0].points.itertuples()}

    def test_are_joined_by_their_parameters_and_not_by_their_places(self):
        served = write_entries(write_served(self.top / "served", (("full",), (SECOND,), (THIRD,))), W32, W8)
        points = self.points_drawn(self.replay(), served)
        wanted = {"full": (1.0, 15), "snapkv (scorer window_attention, window_tokens 32)": (0.6, 25), "snapkv (scorer window_attention, window_tokens 8)": (0.8, 35)}
        self.assertEqual(points, wanted)

    def test_the_figure_that_an_experiment_asks_for_joins_them_so_too(self):
        served = write_entries(write_served(self.top / "served", (("full",), (SECOND,), (THIRD,))), W32, W8)
        quality = joint.asked_pair(load.load(served), "fidelity_serving", self.replay())[1]
        self.assertEqual(list(quality.summary["policy"])[1:], [f"snapkv (scorer window_attention, window_tokens {w})" for w in (8, 32)])

    def test_those_whose_parameters_are_not_known_are_not_joined_and_the_note_says_so(self):
        served = write_served(self.top / "served", (("full",), (SECOND,), (THIRD,)))
        self.assertEqual(list(self.points_drawn(self.replay(), served)), ["full"])
        self.assertIn("Only replayed: SnapKV (scorer window_attention, window_tokens 8) 128, SnapKV (scorer window_attention, window_tokens 32) 128.", self.notes[0])
        self.assertRegex(self.notes[0], r"Not joined, since results do not say how they differ: .*#2.*, .*#3")
        shutil.rmtree(self.top / "replay")
        replay = self.replay()
        (replay / "manifest.json").unlink()
        self.assertEqual(list(self.points_drawn(replay, served)), ["full"], "two places were joined")
        write_entries(served, W32, W8)
        self.points_drawn(replay, served)
        self.assertRegex(self.notes[0], "Only replayed: [^.]*#2[^.]*#3", "labels of the replay with the parameters of the serving")


class Asked(JointCase):
    """`figures: {accuracy_serving: {join: FOLDER}}` in the experiment that is served."""

    def draw(self, name, other):
        self.pair()
        (self.top / "served" / "resolved.yaml").write_text(f"figures: {{{name}: {{join: {other}}}}}\npaths_from: {{working_folder: .., experiment_folder: ..}}\n")
        with mock.patch.object(Figure, "savefig"), mock.patch.object(plot, "KINDS", ()), mock.patch.object(plot.table, "write", lambda *_: ()):
            return plot.draw_all(self.top / "served")

    def test_is_drawn_with_the_experiments_own_figures(self):
        self.assertEqual(self.draw("accuracy_serving", "graded").names, ["accuracy_serving"])

    def test_a_folder_that_is_not_there_costs_no_other_figure(self):
        drawn = self.draw("accuracy_serving", "nowhere")
        self.assertEqual(drawn.names, [])
        self.assertIn("accuracy_serving: not drawn: nowhere: no such folder", drawn.notes[0])

    def test_a_folder_of_another_kind_is_named(self):
        self.assertIn("so their figure is 'accuracy_serving'", self.draw("fidelity_serving", "graded").notes[0])

    def test_other_figures_have_no_join(self):
        with self.assertRaisesRegex(load.ResultsError, "figures.comparison.join: only figures of two folders have it"):
            self.draw("comparison", "graded")


if __name__ == "__main__":
    unittest.main()
