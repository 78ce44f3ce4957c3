"""Simulated against measured: plots/validation.py and plots/points.py. Run: python3 tests/plots/test_validation.py"""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import load  # noqa: E402
import synthetic  # noqa: E402
import table  # noqa: E402
from figure_case import FigureTest  # noqa: E402


class Validation(FigureTest):
    def test_three_figures_and_a_table(self):
        synthetic.write_validation(synthetic.write_runs(self.folder, {}, num_requests=20))
        names, _ = self.draw()
        self.assertTrue({"validation_error", "validation_throughput", "validation_steps"} <= set(names))
        self.assertEqual(self.legend("validation_error"), ["TTFT", "TPOT", "End-to-end", "TTFT, first 120"])
        self.assertEqual(len(self.axes("validation_throughput")[0].lines), 2)
        self.assertIn(r"ttft\_first120 & p99 &", (self.folder / "figures" / "summary.tex").read_text())
        self.assert_fits_a_column()

    def test_what_the_engine_does_not_have_is_a_dash(self):
        self.folder.mkdir(parents=True)
        header = "metric statistic real simulated simulated_lo simulated_hi diff_frac".split()
        rows = [["ttft", "mean", 100, 110, 105, 115, 0.1], ["tpot", "p99", "", "", "", "", ""]]
        synthetic.write_csv(self.folder / "validation.csv", header, rows)
        self.draw(write=False)
        text = (self.folder / "figures" / "summary.tex").read_text()
        self.assertIn(r"ttft & mean & 100 & 110 & +10.0 \\", text)
        self.assertIn(r"tpot & p99 & -- & -- & -- \\", text)


class ValidationNote(FigureTest):
    HEADER = "metric statistic real simulated simulated_lo simulated_hi diff_frac real_requests simulated_requests".split()

    def note(self, header, *rows):
        synthetic.write_csv(synthetic.write_runs(self.folder, {}, num_requests=20) / "validation.csv", header, rows)
        self.draw(write=False)
        (note,) = self.texts("validation_error")
        return note

    def test_what_0_is_and_of_how_many_requests(self):
        note = self.note(self.HEADER, ["ttft", "p50", 100, 110, 105, 120, 0.1, 1200, 1200], ["tpot", "p50", 10, 11, 11, 11, 0.1, 1100, 1100])
        self.assertEqual(note, "0 %: simulated equals measured; n = 1,200 requests, measured and simulated. Whiskers are the range of the simulated runs.")

    def test_the_table_has_its_note_in_two_rows_and_no_whiskers(self):
        self.note(self.HEADER, ["ttft", "p50", 100, 110, 105, 120, 0.1, 1200, 1200])
        self.assertEqual(len(list(table.write(load.load(self.folder), self.folder / "figures"))), 1)
        text = (self.folder / "figures" / "summary.tex").read_text()
        rows = [r"\midrule", r"\multicolumn{5}{l}{Difference 0: simulated equals measured.} \\", r"\multicolumn{5}{l}{n = 1,200 requests, measured and simulated.} \\", r"\bottomrule"]
        self.assertIn("\n".join(rows), text)
        self.assertNotIn("hiskers", text)

    def test_sides_that_differ_and_files_that_do_not_say(self):
        row = ["ttft", "p50", 100, 110, 110, 110, 0.1]
        self.assertEqual(self.note(self.HEADER, [*row, 1200, 60]), "0 %: simulated equals measured; n = 1,200 measured requests, n = 60 simulated requests.")
        self.assertEqual(self.note(self.HEADER, [*row, "", 60]), "0 %: simulated equals measured; n = 60 simulated requests.")
        self.assertEqual(self.note(self.HEADER[:-2], row), "0 %: simulated equals measured.")


class Points(FigureTest):
    """Measured points: kvlab validate --points."""

    def write_points(self, groups):
        self.folder.mkdir(parents=True)
        rows = [[f"p{i}", f"h100_sxm tp{i % groups + 1} vllm M", 10, 12, 0.2 if i else 3.0, "tables" if i % 2 else "roofline"] for i in range(4 * groups)]
        synthetic.write_csv(self.folder / "points.csv", "id group real_tpot_ms simulated_tpot_ms diff_frac basis".split(), rows)

    def test_a_row_per_group(self):
        self.write_points(3)
        names, _ = self.draw()
        self.assertEqual(names, ["point_errors"])
        self.assertEqual(self.legend("point_errors"), ["tables", "roofline"])
        self.assertEqual([t.get_text() for t in self.axes("point_errors")[0].get_yticklabels()], [f"h100_sxm tp{i} vllm M (4)" for i in (1, 2, 3)])

    def test_more_groups_than_a_page_has_room_for(self):
        self.write_points(61)
        names, _ = self.draw()
        self.assertEqual(names, ["point_errors", "point_errors_2"])

    def test_no_points(self):
        self.folder.mkdir(parents=True)
        synthetic.write_csv(self.folder / "points.csv", "id group real_tpot_ms simulated_tpot_ms diff_frac basis".split(), [])
        self.assertEqual(self.draw()[0], [])


class Hosts(FigureTest):
    """Simulation against the engine."""

    def write(self, policies, seeds=((1, 0.1),)):
        """`seeds`: each with its difference."""
        self.folder.mkdir(parents=True)
        synthetic.write_csv(self.folder / "summary.csv", ["run", "host", "kv_policy", "kv_policy.recipe", "seed", "ttft_p99_ms", "tpot_p99_ms", "e2e_p99_ms", "output_tokens_per_s"],
                            [[f"{i:04}", host, *policy, 1, 2.0, 3.0, 4.0, 5.0] for i, (policy, host) in enumerate((p, h) for p in policies for h in ("sim", "engine"))])
        synthetic.write_csv(self.folder / "validation.csv", ["kv_policy", "kv_policy.recipe", "seed", "sim_run", "engine_run", "metric", "statistic", "real", "simulated", "diff_frac"],
                            [[*policy, seed, 2 * i, 2 * i + 1, metric, statistic, 1.0, 1.1, diff]
                             for i, policy in enumerate(policies) for seed, diff in seeds
                             for metric in ("ttft", "tpot") for statistic in ("mean", "p99")])

    def table(self):
        return (self.folder / "figures" / "summary.tex").read_text().split(r"\begin{tabular}")[2].splitlines()[2:-2]

    def test_policies_have_the_names_of_other_figures(self):
        self.write((("full", ""), ("budget_tokens 64", "snapkv"), ("budget_tokens 64", "h2o"), ("recipe", "kivi2")))
        self.draw(write=False)
        self.assertEqual(self.texts("sim_vs_real"), ["0 %: simulated equals measured; n = 1 pair of runs for each."])
        self.assertEqual(self.legend("sim_vs_real"), ["Full cache", "SnapKV 64", "H2O 64", "KIVI-2"])

    def test_the_table_has_a_line_per_policy_and_the_median_of_the_seeds(self):
        self.write((("full", ""), ("budget_tokens 64", "snapkv")), ((1, 0.1), (2, ""), (3, -0.2), (4, 0.3)))
        self.draw(write=False)
        spans = r"simulated / engine $-$ 1 & \multicolumn{2}{c}{TTFT (\%)} & \multicolumn{2}{c}{TPOT (\%)} \\"
        values = r" & +10.0 & +10.0 & +10.0 & +10.0 \\"
        self.assertEqual(self.table(), [spans, r" & mean & P99 & mean & P99 \\", r"\midrule", "Full cache" + values, "SnapKV 64" + values])

    def test_what_no_seed_has_is_a_dash(self):
        self.write((("full", ""),), ((1, ""), (2, "")))
        self.draw(write=False)
        self.assertEqual(self.table()[3], r"Full cache & -- & -- & -- & -- \\")

    def test_more_than_a_dozen_look_different(self):
        self.write([("recipe", f"policy_{i}") for i in range(20)])
        self.draw(write=False)
        looks = [(p.get_marker(), p.get_markerfacecolor()) for p in self.axes("sim_vs_real")[0].lines[:20]]
        self.assertEqual(len(set(looks)), 20)


if __name__ == "__main__":
    unittest.main()
