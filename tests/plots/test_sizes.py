"""Every kind of figure at the widths of papers: nothing leaves the page, no legend covers a text. Run: python3 tests/plots/test_sizes.py"""

import contextlib
import json
import sys
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

import load  # noqa: E402
import page_check  # noqa: E402
import plot  # noqa: E402
import prefill  # noqa: E402
import serving_fidelity  # noqa: E402
import settings  # noqa: E402
import style  # noqa: E402
import synthetic  # noqa: E402
from figure_case import RATE, SCHEDULERS, FigureTest  # noqa: E402
import test_frontier  # noqa: E402
from test_joint import write_graded, write_served  # noqa: E402
import test_serving_fidelity  # noqa: E402

SIZES = ((3.3, 2.2), (3.4, 2.6), (5, 2.6), (7, 3))
RECIPES = {"streaming": "position", "h2o": "attention", "tova": "attention", "snapkv": "attention", "pyramidkv": "attention", "keydiff": "keys and values",
           "expected_attention": "expected attention", "kivi2": "format", "quest": "selection", "random": "reference", "full": "reference"}


class Sizes(FigureTest):
    def check(self, *folders, only=(), overrides=(), kind=None):
        """Draws all that the folders have, or the figures `only`, or those of the module `kind`, at every size; returns their names."""
        names = set()
        overrides = [*overrides, *(["figures.all.draw=false"] if only else []), *(f"figures.{name}.draw=true" for name in only)]
        for size in SIZES:
            for name, figure in self._drawn(folders, [f"figures.all.size=[{size[0]}, {size[1]}]", *overrides], kind).items():
                self.assertEqual(figure.get_figwidth(), size[0])
                self.assertEqual(page_check.faults(figure), [], f"{name} at {size[0]} in")
                names.add(name)
            style.plt.close("all")
        return names

    def _drawn(self, folders, overrides, kind):
        save, found = style.save, {}

        def keep(figure, folder, name, *legend, **more):
            with mock.patch.object(style.plt, "close"):
                saved = save(figure, folder, name, *legend, **more)
            if saved:
                found[name] = figure
            return saved

        with mock.patch.object(Figure, "savefig"), mock.patch.object(style, "save", keep):
            if kind is not None:
                settings.start(folders[0], overrides)
                style.apply()
                list(kind.draw(load.load(folders[0]), folders[0] / "figures"))
            else:
                drawn = plot.draw_joint(folders, overrides=overrides) if len(folders) > 1 else plot.draw_all(folders[0], overrides=overrides)
                self.assertEqual(drawn.failures, [])
        return found

    def graded(self, budgets=(128, 512)):
        policies = [("full", None, 0.9)] + [(r, b, 0.1 + 0.07 * i + b / 4000) for i, r in enumerate(RECIPES) if r != "full" for b in budgets]
        folder = write_graded(self.folder / "graded", policies)
        rows = pd.read_csv(folder / "summary.csv", dtype={"run": str})
        rows.assign(family=rows["recipe"].map(RECIPES), resident_bytes_frac=np.linspace(0.1, 1, len(rows))).to_csv(folder / "summary.csv", index=False)
        return folder

    def served(self, budgets=(128, 512)):
        return write_served(self.folder / "served", [("full",), *((f"{r} {b}",) for r in RECIPES if r != "full" for b in budgets)])

    def test_schedulers_at_several_rates(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:3], RATE: [1.0, 2.0]}, seeds=(1, 2), num_requests=20)
        only = ("cdf_ttft", "throughput_latency_ttft", "goodput", "comparison", "timeline_static_rate_per_s_2")
        self.assertEqual(self.check(self.folder, only=only), set(only))

    def test_long_names_and_timelines(self):
        axes = {"scheduler": ["{sarathi: {budget_tokens: 512}}", "{sarathi: {budget_tokens: 2048}}"], "router": ["least_outstanding", "prefix_affinity"]}
        synthetic.write_runs(self.folder, axes, num_requests=40)
        label = "figures.all.y_label=A long label of the axis that goes up and that a user has written"
        only = ("timeline", "comparison", "cdf_tpot")
        self.assertEqual(self.check(self.folder, only=only, overrides=[label]), set(only))

    def test_a_sweep_of_several_numbers(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2], "replicas": [1, 2, 4, 8], "gpu_memory_frac": [0.7, 0.8, 0.9, 0.95]}, num_requests=5)
        only = ("settings", "comparison")
        self.assertEqual(self.check(self.folder, only=only), set(only))

    def test_one_number_of_several_values(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:3], "budget_tokens": [512, 1024, 2048, 16384]}, num_requests=5)
        self.assertEqual(self.check(self.folder, only=["comparison"]), {"comparison"})

    def test_hit_ratios(self):
        synthetic.write_hit_ratios(self.folder)
        self.assertIn("hit_ratio", self.check(self.folder))

    def test_a_search(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS}, num_requests=10)
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str}).assign(search_rate_per_s=range(1, 7), gpus=2, dollars_per_million_tokens=1.5)
        rows.to_csv(self.folder / "summary.csv", index=False)
        probes = [[run, i, rate, share, 0, int(share >= 0.9)] for run in rows["run"] for i, (rate, share) in enumerate(((1, 1.0), (16, 0.0), (4, 0.95), (5, 0.6)))]
        synthetic.write_csv(self.folder / "search.csv", "run probe rate_per_s slo_attainment_frac goodput_per_s attains".split(), probes)
        only = ("attainment", "comparison")
        self.assertEqual(self.check(self.folder, only=only), set(only))

    def test_replays(self):
        synthetic.write_replay(self.folder)
        found = self.check(self.folder)
        self.assertLessEqual({"fidelity_bytes", "fidelity_attended", "needles", "fidelity_heads_budget_tokens_128", "fidelity_steps_budget_tokens_128"}, found)

    def test_answers(self):
        self.assertLessEqual({"accuracy_bytes", "accuracy_tasks_budget_tokens_128"}, self.check(self.graded()))

    def test_replay_predicts(self):
        synthetic.write_predictions(self.folder)
        self.assertIn("replay_predicts", self.check(self.folder))

    def test_answers_and_serving_with_one_budget_and_with_two(self):
        for budgets in ((128,), (128, 512)):
            folders = self.graded(budgets), self.served(budgets)
            self.assertEqual(self.check(*folders), {"accuracy_serving"})
            one = "figures.accuracy_serving.metric=[goodput_per_s]"
            self.check(*folders, overrides=[one, "figures.accuracy_serving.y_label=Right answers of the model of mine, the mean over all of its tasks"])

    def test_replay_and_serving(self):
        replay = synthetic.write_replay(self.folder / "replay", budgets=(128,))
        (replay / "manifest.json").write_text(json.dumps({"runs": [{"model": "../engine/probe"}]}))
        self.assertEqual(self.check(replay, self.served((128,))), {"fidelity_serving"})

    def test_attention_kept_in_serving(self):
        test_serving_fidelity.ServingFidelity.write(self, test_serving_fidelity.ServingFidelity.POLICIES)
        self.assertEqual(self.check(self.folder, kind=serving_fidelity), {"serving_fidelity"})

    def test_both_hosts(self):
        test_frontier.Frontier.write(self, [("1", "snapkv"), ("1", "h2o"), ("full", "")])
        self.assertEqual(self.check(self.folder / "graded", self.folder / "served"), {"frontier"})

    def test_prompts(self):
        self.folder.mkdir()
        rows = [synthetic.replay_row(recipe, "prefill selection", 1000, 1000, 1.0, 0.0, 1.0, 1.0) for recipe in ("minference", "xattention")]
        synthetic.write_csv(self.folder / "summary.csv", ["run", "kv_policy.recipe", "seed", *synthetic.REPLAY], [[f"{i}", row[0], 1, *row] for i, row in enumerate(rows)])
        prompts = [[f"{i}", sample, 0.9 + i / 20, 0.1 - i / 20, share] for i in range(2) for sample, share in (("short", 0.5), ("long", 0.25))]
        synthetic.write_csv(self.folder / "prompts.csv", "run sample mass_kept output_rel_err pairs_frac".split(), prompts)
        self.assertEqual(self.check(self.folder, kind=prefill), {"prefill_attention"})

    def test_validation(self):
        synthetic.write_runs(self.folder, {}, num_requests=20)
        synthetic.write_validation(self.folder)
        only = ("validation_error", "validation_throughput", "validation_steps")
        self.assertEqual(self.check(self.folder, only=only), set(only))

    def test_points_and_claims(self):
        self.folder.mkdir()
        rows = [[i, f"a group of points {i % 5}", 10, 11, 0.1 * (i % 7 - 3), ("tables", "roofline")[i % 2]] for i in range(40)]
        synthetic.write_csv(self.folder / "points.csv", "id group real_tpot_ms simulated_tpot_ms diff_frac basis".split(), rows)
        self.assertEqual(self.check(self.folder), {"point_errors"})
        (self.folder / "points.csv").unlink()
        rows = [[f"claim_of_a_paper_{i}", "s", 2, 4, 1, "x", i + 1, "factor", "reproduced"] for i in range(14)]
        synthetic.write_csv(self.folder / "claims.csv", "name system published published_to no_effect unit ours counts verdict".split(), rows)
        self.assertEqual(self.check(self.folder), {"claims"})

    def test_a_figure_of_the_users(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS, RATE: [1.0, 2.0, 4.0]}, num_requests=20)
        own = ["figures.tail.metric=[ttft, tpot]", f"figures.tail.x={RATE}", "figures.bars.metric=[ttft]", "figures.bars.series=[scheduler]", "figures.bars.x=scheduler"]
        self.assertEqual(self.check(self.folder, only=("tail", "bars"), overrides=own), {"tail", "bars"})


class TheCheckItself(unittest.TestCase):
    """A check that finds nothing proves nothing."""

    def setUp(self):
        settings.start(Path("/nowhere"))
        style.apply()
        self.addCleanup(style.plt.close, "all")

    def test_it_sees_what_leaves_the_page_and_what_a_legend_covers(self):
        figure, axes = style.plt.subplots(figsize=(3.4, 2))
        line = axes.plot([0, 1], [0, 1])
        self.assertEqual(page_check.faults(figure), [])
        note = figure.text(0.6, 0.01, "a note that is far too long for a figure of this width")
        self.assertRegex(page_check.faults(figure)[0], "a note that is far too long.* px beyond the page")
        note.remove()
        wide = figure.legend(line * 3, ["a label of some thirty letters"] * 3, ncol=3, loc="upper center")
        self.assertTrue(any("the legend' is" in fault for fault in page_check.faults(figure)))
        wide.remove()
        figure.legend(line, ["a label"], loc="center left")
        self.assertTrue(any(fault.startswith("the legend covers") for fault in page_check.faults(figure)))


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        unittest.main()
