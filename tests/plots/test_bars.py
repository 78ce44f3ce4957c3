"""Bars that compare policies: plots/bars.py. Run: python3 tests/plots/test_bars.py"""

import json
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import load  # noqa: E402
import setting  # noqa: E402
import synthetic  # noqa: E402
from figure_case import FigureTest  # noqa: E402


class Comparison(FigureTest):
    """Bars: pages, axes, units, what is left out."""

    def write(self, policies, seeds=(1,), **columns):
        """Bars of these policies; `columns`: {name: a value per policy}."""
        synthetic.write_runs(self.folder, {"scheduler": policies}, seeds=seeds, num_requests=10)
        for table in ("requests", "timeline"):
            (self.folder / f"{table}.csv").unlink()
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str})
        for name, values in columns.items():
            rows[name] = np.repeat(values, len(seeds))
        rows.to_csv(self.folder / "summary.csv", index=False)
        return rows

    def test_at_most_a_page_high(self):
        for count, every in ((17, False), (60, False), (60, True)):
            self.write([f"{{a_policy_with_a_long_name_{i}: {{budget_tokens: 2048, another_key: 7}}}}" for i in range(count)])
            self.drawn.clear()
            names, notes = self.draw(every=every, write=False)
            self.assertEqual([n for n in names if n.startswith("comparison")], ["comparison", *(f"comparison_{i}" for i in range(2, len(names)))])
            self.assertEqual(sum(len(self.axes(n)[0].patches) for n in names if n.startswith("comparison")), count if every or count < 24 else 24)
            for name in self.drawn:
                self.assert_nothing_overlaps(name)
            self.assertEqual(notes, [f"{n}: 24 of 60 lines drawn" for n in self.drawn] if count == 60 and not every else [])

    def test_numbers_have_three_digits_and_whole_ones_no_decimals(self):
        self.write(["a", "b", "c", "d"], ttft_p99_ms=[1.4, 1.424, 2, 99.97])
        self.draw(write=False)
        self.assertEqual([t.get_text() for t in self.axes("comparison")[0].texts], ["1.40", "1.42", "2", "100"])

    def test_what_is_left_out_is_named(self):
        self.write([f"policy_{i:02}" for i in range(26)])
        self.draw(write=False)
        (note,) = self.texts("comparison")
        self.assertRegex(note, r"^n = 1 seed, no interval. Not drawn: policy_\d\d, policy_\d\d \(--all draws them\)\.$")

    def test_a_logarithmic_axis_where_bars_differ_a_hundredfold(self):
        self.write(["a", "b", "c"], ttft_p99_ms=[80, 8000, 90], tpot_p99_ms=[80, 7900, 90])
        self.draw(write=False)
        first, second = self.axes("comparison")[:2]
        self.assertEqual((first.get_xscale(), first.get_xlabel()), ("log", "P99 TTFT (ms), log"))
        self.assertEqual((second.get_xscale(), second.get_xlabel()), ("linear", "P99 TPOT (ms)"))
        self.assertTrue(all(p.get_window_extent().width > 1 for p in second.patches[:3]), "a bar that cannot be seen")
        self.assertEqual((len(first.patches), list(first.lines[0].get_xdata())), (0, [80, 8000, 90]))  # points: a length has no meaning there

    def test_a_search_shows_gpus_and_price_and_no_numbers_of_what_never_attains(self):
        rows = self.write(["a100-80gb", "h100", "never"], search_replicas=[4, 2, None], gpus=[8, 4, 64], dollars_per_million_tokens=[2.0, 1.5, 30.0])
        synthetic.write_csv(self.folder / "search.csv", "run probe rate_per_s slo_attainment_frac goodput_per_s attains varied value".split(),
                            [[run, 1, "", share, 0, int(share > 0.9), "replicas", 4] for run, share in zip(rows["run"], (0.95, 1.0, 0.2))])
        self.draw(write=False)
        axes = self.axes("comparison")
        self.assertEqual([a.get_xlabel().replace("\n", " ") for a in axes[:3]],
                         ["Fewest replicas that attain the SLO (replicas)", "GPUs (number)", "Price (dollars per 1M tokens)"])
        self.assertEqual([[t.get_text() for t in a.texts] for a in axes[:3]], [["4", "2", "none"], ["8", "4", "none"], ["2", "1.50", "none"]])
        self.assertEqual([t.get_text() for t in axes[0].get_yticklabels()], ["A100 SXM 80GB", "H100 SXM 80GB", "never"])
        text = (self.folder / "figures" / "summary.tex").read_text()
        self.assertIn(r"fewest replicas & GPUs & \$ per 1M tokens &", text)
        self.assertIn("never & -- & -- & -- &", text)

    def test_seconds_from_ten_on(self):
        self.write(["a", "b"], ttft_p99_ms=[9_999, 5_000], tpot_p99_ms=[10_000, 5_000])
        self.draw(write=False)
        self.assertEqual([a.get_xlabel() for a in self.axes("comparison")[:2]], ["P99 TTFT (ms)", "P99 TPOT (s)"])
        self.assertEqual(self.axes("comparison")[1].texts[0].get_text(), "10")

    def test_hits_and_the_searched_rate_where_there_are_any(self):
        self.write(["a", "b"], prefix_hit_frac=[0.1, 0.4])
        self.draw(write=False)
        self.assertEqual(self.axes("comparison")[0].get_xlabel(), "Prefix hit ratio (share)")
        self.write(["a", "b"], search_rate_per_s=[3.0, 4.0])
        self.draw(write=False)
        self.assertEqual([t.get_text() for t in self.axes("comparison")[0].texts], ["3", "4"])

    def test_numbers_have_the_name_of_their_axis(self):
        """A search over replicas at several tp: what a bar is of, and the quantity that was found."""
        rows = self.write(["a", "b"], search_replicas=[4, 2]).rename(columns={"scheduler": "parallel.tp"}).assign(**{"parallel.tp": [2, 4]})
        rows.to_csv(self.folder / "summary.csv", index=False)
        self.draw(write=False)
        first = self.axes("comparison")[0]
        self.assertEqual([t.get_text() for t in first.get_yticklabels()], ["TP 2", "TP 4"])
        self.assertEqual((first.get_xlabel().replace("\n", " "), [t.get_text() for t in first.texts]), ("Fewest replicas that attain the SLO (replicas)", ["4", "2"]))
        self.draw(write=False, overrides=["figures.all.names.2=two GPUs", "figures.all.names.tp 4=four"])
        self.assertEqual([t.get_text() for t in self.axes("comparison")[0].get_yticklabels()], ["two GPUs", "four"])

    def test_limits_of_the_slo(self):
        self.write(["a", "b"], ttft_p99_ms=[500, 1500])
        for slo in ("slo: {ttft_ms: 1000, tpot_ms: 50}\n", "slo:\n  ttft_ms: 1000\n  tpot_ms: 50\n"):
            (self.folder / "resolved.yaml").write_text(f"name: x\n{slo}search:\n  ttft_ms: 7\n")
            self.assertEqual(load.load(self.folder).slo_ms, {"ttft": 1000.0, "tpot": 50.0})
            self.draw(write=False)
            self.assertEqual(self.axes("comparison")[0].lines[0].get_xdata(), [1000.0, 1000.0])
        (self.folder / "resolved.yaml").write_text("slo: {ttft_ms: [1000, 2000]}\n")
        self.assertEqual(load.load(self.folder).slo_ms, {})

    def test_limits_of_a_named_slo(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "resolved.yaml").write_text("slo: mlperf_llama2-70b_server\n")
        limits = {"ttft": 2000.0, "tpot": 200.0}
        for runs, expected in (([limits, limits], limits), ([limits, {"ttft": 1.0}], {}), ([None, None], {})):
            (self.folder / "manifest.json").write_text(json.dumps({"runs": [{"slo_ms": one} if one else {} for one in runs]}))
            self.assertEqual(setting.slo_ms(self.folder), expected)

    def test_equal_seeds_are_one(self):
        rows = self.write(["a", "b"], seeds=(1, 2, 3))
        metrics = [c for c in rows.columns if c not in ("run", "scheduler", "seed")]
        for metric in metrics:
            rows[metric] = rows[metric].where(rows["scheduler"] == "b", rows[metric].iloc[0])
        rows.to_csv(self.folder / "summary.csv", index=False)
        self.draw(write=False)
        self.assertEqual(self.texts("comparison"), ["Mean and 95 % t-interval over n = 3 seeds; without an interval n = 1."])
        text = (self.folder / "figures" / "summary.tex").read_text()
        self.assertNotIn(r"\pm", next(line for line in text.splitlines() if line.startswith("a &")))
        self.assertIn(r"{Mean and 95\,\% t-interval over n = 3 seeds; without an interval n = 1.}", text)
        rows[metrics] = rows[metrics].iloc[0].tolist()
        rows.to_csv(self.folder / "summary.csv", index=False)
        self.draw(write=False)
        self.assertEqual(self.texts("comparison"), ["n = 1 seed, no interval."])


if __name__ == "__main__":
    unittest.main()
