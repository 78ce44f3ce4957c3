"""Simulations with samples: plots/serving_fidelity.py. Run: python3 tests/plots/test_serving_fidelity.py"""

import sys
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import pandas as pd  # noqa: E402

import load  # noqa: E402
import serving_fidelity  # noqa: E402
import style  # noqa: E402
from figure_case import RATE, FigureTest  # noqa: E402


class ServingFidelity(FigureTest):
    POLICIES = (("full", "full", "reference", 1.0, 1.0), ("1", "snapkv", "attention", 0.9, 0.25),
                ("2", "snapkv", "eviction and format", 0.9, 0.08))

    def write(self, policies=POLICIES, without=()):
        """`without`: axes that the results do not have."""
        rows = []
        for rate in (1, 2):
            for at, recipe, family, mass, resident in policies:
                goodput = rate * (0.5 if recipe == "full" and rate == 2 else 1.0)
                rows.append([f"{len(rows) + 1:04}", rate, at, recipe, 1, 100 * rate, 10 * rate, 300 * rate, goodput, recipe, 64, mass, 0.1, 0.9, resident, family])
        header = ["run", RATE, "kv_policy", "kv_policy.recipe", "seed", "ttft_p50_ms", "tpot_p99_ms", "output_tokens_per_s", "goodput_per_s",
                  "recipe", "budget_tokens", "attention_mass", "output_rel_err", "topk_recall", "resident_bytes_frac", "family"]
        self.folder.mkdir(exist_ok=True)
        pd.DataFrame(rows, columns=header).drop(columns=list(without)).to_csv(self.folder / "summary.csv", index=False)
        return load.load(self.folder)

    def test_one_policy_at_several_loads_and_no_axes_at_all(self):
        policy_axes = ["kv_policy", "kv_policy.recipe"]
        for without, goodput, output in ((policy_axes, 2, 600), ([RATE, *policy_axes], 1.5, 450)):  # without a load: the mean of both runs
            (point,) = serving_fidelity.points_of(self.write(self.POLICIES[1:2], without)).to_dict("records")
            self.assertEqual((point["name"], point["attention_mass"]), ("snapkv", 0.9))
            self.assertEqual((point["goodput_per_s"], point["output_tokens_per_s"]), (goodput, output))

    def test_policies_have_the_names_of_their_recipes(self):
        results = self.write()
        self.assertEqual(sorted(results.summary["kv_policy"].unique()), ["full", "snapkv (1)", "snapkv (2)"])
        self.assertEqual(results.axes, [RATE, "kv_policy"])

    def test_a_point_is_the_best_load(self):
        points = serving_fidelity.points_of(self.write()).set_index("name")
        self.assertEqual(sorted(points.index), ["full", "snapkv (25 % of bytes)", "snapkv (8 % of bytes)"])
        self.assertEqual(points.loc["full", "goodput_per_s"], 1)
        self.assertEqual(points.loc["snapkv (8 % of bytes)", "goodput_per_s"], 2)
        self.assertEqual(points.loc["full", "output_tokens_per_s"], 600)

    def test_labels_say_which_model(self):
        results = self.write()
        (self.folder / "resolved.yaml").write_text("samples:\n  niah: {record: {model: ../engine/probe, eval: x.jsonl}}\nkv_policy: full\n")
        (self.folder / "manifest.json").write_text('{"name": "x", "runs": [{"model": "llama-3.1-8b"}, {"run": "2"}]}')
        with mock.patch.object(style, "save") as save:
            list(serving_fidelity.draw(results, self.folder / "figures"))
        left, right = save.call_args.args[0].axes
        self.assertEqual(left.get_ylabel(), "Attention mass kept\nmeasured on the model KVLab probe")
        self.assertTrue(right.get_xlabel().endswith("(tokens/s)\nsimulated: Llama-3.1-8B"), right.get_xlabel())

    def test_figure(self):
        results = self.write()
        style.apply()
        self.assertEqual(list(serving_fidelity.draw(results, self.folder / "figures")), [("serving_fidelity", "")])
        for kind in ("pdf", "png"):
            self.assertGreater((self.folder / "figures" / f"serving_fidelity.{kind}").stat().st_size, 2000)


if __name__ == "__main__":
    unittest.main()
