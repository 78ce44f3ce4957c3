"""Numbers in figures and tables: plots/groups.py, load.py and table.py. Run: python3 tests/plots/test_numbers.py"""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import bars  # noqa: E402
import cdf  # noqa: E402
import groups  # noqa: E402
import load  # noqa: E402
import synthetic  # noqa: E402
import table  # noqa: E402
import timeline  # noqa: E402
from figure_case import RATE  # noqa: E402


class Numbers(unittest.TestCase):
    def requests(self):
        columns = {"run": ["0001"] * 4, "arrival_ns": [0, 0, 10_000_000, 0], "first_token_ns": [5e6, 20e6, 30e6, np.nan],
                   "last_token_ns": [5e6, 50e6, 40e6, np.nan], "output_tokens": [1, 4, 2, 0], "state": ["completed"] * 3 + ["rejected"]}
        return pd.DataFrame(columns)

    def test_latencies_by_hand(self):
        latency = cdf.latencies_ms(self.requests())
        self.assertEqual(latency["ttft"].tolist(), [5, 20, 20])
        self.assertEqual(latency["e2e"].tolist(), [5, 50, 30])
        self.assertEqual(latency["tpot"].dropna().tolist(), [10, 10])  # a single token has no gap

    def test_cdf_holds_the_percentiles(self):
        values = np.random.default_rng(1).permutation(np.arange(1, 10_001))
        x, share = cdf.percentile_points(values)
        self.assertLessEqual(len(x), 2000)
        self.assertEqual((x[0], x[-1], share[-1]), (1, 10_000, 1.0))
        for percent in (50, 90, 99):
            self.assertAlmostEqual(np.interp(percent / 100, share, x), 100 * percent, delta=6)

    def test_interval_over_seeds(self):
        mean, half, n = groups.mean_and_interval([1.0, 2.0, 3.0, np.nan])
        self.assertEqual((mean, n), (2.0, 3))
        self.assertAlmostEqual(half, 4.303 / np.sqrt(3))
        self.assertEqual(groups.mean_and_interval([7.0]), (7.0, 0.0, 1))
        self.assertEqual(groups.mean_and_interval([])[2], 0)

    def test_quantiles_of_t(self):
        for degrees, value in ((1, 12.706), (30, 2.042), (31, 2.0395), (60, 2.0003), (1000, 1.9623)):
            self.assertAlmostEqual(groups.t95(degrees), value, delta=2e-4)

    def test_timeline_adds_replicas_and_rates(self):
        rows = [["0001", r, t * 10**9, 2 + r, 1, r, 30, 10, 60, 8, 100] for t in (1, 2) for r in (0, 1)]
        rows.pop()  # the second replica stops early: its gauges stay, it gives no tokens
        result = timeline.of_run(pd.DataFrame(rows, columns=synthetic.TIMELINE))
        self.assertEqual(result["running"].tolist(), [5, 5])
        self.assertEqual(result["waiting"].tolist(), [3, 3])  # swapped requests wait
        self.assertEqual(result["kv_used"].tolist(), [30, 30])
        self.assertEqual(result["output_tokens_per_s"].tolist(), [200, 100])

    def test_thinning_keeps_tokens(self):
        rows = [["0001", 0, t * 10**8, 1, 0, 0, 1, 1, 1, 0, 5] for t in range(1, 1002)]
        result = timeline.of_run(pd.DataFrame(rows, columns=synthetic.TIMELINE))
        self.assertLessEqual(len(result), 250)
        lengths = np.diff(np.concatenate(([0], result["time_s"])))
        self.assertAlmostEqual((result["output_tokens_per_s"] * lengths).sum(), 5 * 1001)

    def test_numbers_and_text_for_latex(self):
        self.assertEqual([table.number(v) for v in (0, 0.12345, 12.345, 999.6, 12345.6, float("nan"))], ["0.00", "0.123", "12.3", "1,000".replace(",", r"\,"), r"12\,346", "--"])
        self.assertEqual(table.with_interval(138.2, 7.46), r"138 $\pm$ 7")
        self.assertEqual(table.escape("a_b & 5%"), r"a\_b \& 5\%")

    def test_an_axis_that_a_run_does_not_have_is_not_in_its_label(self):
        rows = pd.DataFrame({"scheduler": ["orca", "sarathi", "sarathi"], "scheduler.sarathi.chunk_tokens": [np.nan, 512, 2097152]})
        self.assertEqual([text for text, _ in groups.lines_of(rows, list(rows.columns), "x")],
                         ["orca", "sarathi, chunk_tokens 512", "sarathi, chunk_tokens 2097152"])

    def test_titles_have_units(self):
        self.assertEqual(load.axis_title(RATE), "Arrival rate (requests/s)")
        self.assertEqual(load.axis_title("scheduler.sarathi.chunk_tokens"), "Chunk (tokens)")
        self.assertEqual([load.axis_title(a) for a in ("replicas", "parallel.tp", "kv_policy")], ["Replicas", "TP", "KV policy"])

    def test_goodput_replaces_latency_only_with_an_slo(self):
        self.assertNotIn("goodput_per_s", [c for c, _ in bars.metrics_of(pd.DataFrame({"goodput_per_s": [np.nan]}))])
        self.assertIn("goodput_per_s", [c for c, _ in bars.metrics_of(pd.DataFrame({"goodput_per_s": [1.0]}))])


if __name__ == "__main__":
    unittest.main()
