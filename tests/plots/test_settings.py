"""Settings of figures: plots/settings.py and plots/custom.py. Run: python3 tests/plots/test_settings.py"""

import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE)]

import pandas as pd  # noqa: E402

import load  # noqa: E402
import settings  # noqa: E402
import synthetic  # noqa: E402
from figure_case import RATE, SCHEDULERS, FigureTest  # noqa: E402


class Settings(FigureTest):
    """`figures:` of an experiment, and --set."""

    def write(self, figures="", axes=None, seeds=(1,)):
        synthetic.write_runs(self.folder, axes or {"scheduler": SCHEDULERS[2:4], RATE: [2.0, 4.0, 8.0]}, seeds=seeds, num_requests=10)
        (self.folder / "timeline.csv").unlink()
        (self.folder / "resolved.yaml").write_text(f"slo: {{ttft_ms: 100}}\nfigures: {{{figures}}}\n")

    def test_look_of_a_usual_figure(self):
        self.write("goodput: {size: [5, 2], title: T, y_label: Y, x_range: [0, 9], x_scale: linear, names: {vllm_v1: 'vLLM, 2,048'}, only: [vllm_v1, vLLM V0]}")
        self.draw(write=False)
        (axis,), figure = self.axes("goodput"), self.drawn["goodput"]
        self.assertEqual((tuple(figure.get_size_inches()), axis.get_ylabel(), axis.get_xlim()), ((5, 2), "Y", (0, 9)))
        self.assertEqual(self.texts("goodput")[0], "T")
        self.assertEqual(self.legend("goodput"), ["vLLM, 2,048", "vLLM V0"])
        self.assertEqual(self.legend("throughput_latency_ttft"), ["vLLM V0", "vLLM V1"])
        self.assert_nothing_overlaps("goodput")

    def test_lines_of_one_numeric_axis_are_named_by_id_or_by_what_is_drawn(self):
        self.write(axes={"replicas": [1, 2, 4]})
        self.draw(write=False, overrides=[f'figures.{name}.only=["4 replicas", "1"]' for name in ("comparison", "cdf_ttft")])
        self.assertEqual([t.get_text() for t in self.axes("comparison")[0].get_yticklabels()], ["4 replicas", "1 replica"])
        self.assertEqual(self.legend("cdf_ttft"), ["4 replicas", "1 replica"])
        self.draw(write=False, overrides=["figures.tail.metric=ttft", 'figures.tail.only=["2 replicas"]'])
        self.assertEqual([t.get_text() for t in self.axes("tail")[0].get_yticklabels()], ["2 replicas"])

    def test_the_command_line_goes_first(self):
        self.write("goodput: {size: [5, 2]}, all: {slo_lines: false}")
        self.draw(write=False, overrides=["figures.goodput.size=[3.4,2.4]", "figures.all.names.vllm_v1=mine", "figures.cdf.draw=false", "figures.comparison.legend=false"])
        self.assertEqual(tuple(self.drawn["goodput"].get_size_inches()), (3.4, 2.4))
        self.assertEqual(self.legend("goodput"), ["vLLM V0", "mine"])
        self.assertEqual([n for n in self.drawn if n.startswith("cdf")], [])
        self.assertEqual(len(self.axes("throughput_latency_ttft")[0].lines), 2, "a line of the SLO")

    def test_a_figure_of_ones_own(self):
        self.write("tail: {metric: [ttft, tpot], statistic: p50, x: rate_per_s, series: scheduler, only: {rate_per_s: [2, 8]}}", seeds=(1, 2))
        names, _ = self.draw(write=False)
        self.assertIn("tail", names)
        upper, lower = self.axes("tail")
        self.assertEqual((upper.get_ylabel(), lower.get_ylabel(), lower.get_xlabel()), ("P50 TTFT (ms)", "P50 TPOT (ms)", "Arrival rate (requests/s)"))
        self.assertEqual(list(upper.lines[0].get_xdata()), [2, 8])
        rows = pd.read_csv(self.folder / "summary.csv")
        wanted = rows[(rows["scheduler"] == "vllm_v0") & (rows[RATE] == 8)]["ttft_p50_ms"].mean()
        self.assertAlmostEqual(upper.lines[0].get_ydata()[1], wanted)

    def test_data_of_a_usual_figure(self):
        self.write("throughput_latency_ttft: {statistic: p50}, comparison: {metric: [ttft], x: scheduler, only: {rate_per_s: [8]}}")
        names, _ = self.draw(write=False)
        self.assertEqual(names.count("throughput_latency_ttft"), 1)
        self.assertEqual(self.axes("throughput_latency_ttft")[0].get_ylabel(), "P50 TTFT (ms)")
        self.assertEqual(len(self.axes("comparison")), 1)

    def test_panels_of_distributions(self):
        self.write("spread: {metric: e2e, statistic: cdf, panel: rate_per_s}")
        self.draw(write=False)
        self.assertEqual([a.get_title() for a in self.axes("spread")[:3]], ["2 req/s", "4 req/s", "8 req/s"])
        self.assertEqual([len(a.lines) for a in self.axes("spread")[:3]], [2, 2, 2])

    def test_a_whole_mapping_on_the_command_line(self):
        synthetic.write_runs(self.folder, {"scheduler": ["vllm_v0", "vllm_v1"]}, num_requests=10)
        self.draw(write=False, overrides=["figures.all.draw=false", "figures.tail={metric: [ttft], draw: true, size: [3.4, 2.5]}"])
        self.assertEqual((list(self.drawn), self.drawn["tail"].get_figwidth()), (["tail"], 3.4))

    def error_of(self, figures, *overrides):
        self.write(figures, {"scheduler": SCHEDULERS[2:4]})
        with self.assertRaises(load.ResultsError) as caught:
            self.draw(write=False, overrides=overrides)
        return str(caught.exception)

    def test_columns_of_the_table(self):
        self.write("summary: {metric: [goodput_per_s, ttft, tpot_p50_ms], statistic: p90}")
        self.draw()
        header = (self.folder / "figures" / "summary.tex").read_text().split(r"\toprule")[1].split(r"\midrule")[0]
        self.assertEqual([cell.strip() for cell in header.replace("\\\\", "").split("&")][2:], ["Goodput (requests/s)", "P90 TTFT (ms)", "TPOT P50 (ms)"])
        self.assertNotIn("summary", self.drawn)
        self.write("summary: {metric: nosuch}")
        with self.assertRaisesRegex(load.ResultsError, "figures.summary.metric: unknown 'nosuch'"):
            self.draw()

    def test_what_does_not_exist_is_an_error_with_what_does(self):
        for figures, override, message in (
                ("cdf_ttf: {size: [3, 2]}", None, "figures: unknown figure 'cdf_ttf'; did you mean 'cdf_ttft'?"),
                ("x: {metric: tttft}", None, "figures.x.metric: unknown 'tttft'; did you mean 'ttft'?"),
                ("x: {metric: ttft, x: rate}", None, "figures.x.x: no axis 'rate'; axes: scheduler"),
                ("x: {metric: ttft, statistic: p42}", None, "figures.x.statistic: unknown 'p42'; known: cdf, max, mean, p50"),
                ("x: {x: scheduler}", None, "figures.x: a figure of your own needs 'metric'"),
                ("comparison: {only: [vllm_v2]}", None, "figures.comparison.only: unknown 'vllm_v2'; did you mean 'vllm_v1'?"),
                ("", "figures.comparison={siz: 1}", "figures.comparison: unknown 'siz'; did you mean 'size'?"),
                ("", "figures.comparison=5", "expected figures.NAME.KEY=VALUE"),
                ("", "figures.comparison.siz=1", "figures.comparison: unknown 'siz'; did you mean 'size'?"),
                ("", "figures.comparison.size=[1]", "figures.comparison.size: expected two numbers, [a, b]"),
                ("", "comparison.size=[1,2]", "expected figures.NAME.KEY=VALUE"),
                ("", "figures.comparison.format=svg", "figures.comparison.format: unknown 'svg'; known: pdf, pgf, png")):
            self.assertIn(message, self.error_of(figures, *([override] if override else [])))

    def test_set_takes_mappings(self):
        settings._given.clear()
        for text in ("figures.comparison={size: [7, 3], names: {a: A}}", "figures={tail: {metric: ttft}}", "figures.comparison.names.b=B"):
            for name, found in settings._read_override(text).items():
                settings._add(name, found)
        self.assertEqual(settings._given, {"comparison": {"size": [7.0, 3.0], "names": {"a": "A", "b": "B"}}, "tail": {"metric": ["ttft"]}})

    def test_keys_are_those_that_the_program_knows(self):
        source = (HERE.parents[1] / "app" / "runs" / "report" / "sweep_keys.cpp").read_text()
        for key in (*settings.LOOK, *settings.DATA, *settings.JOIN):
            self.assertIn(f'"{key}"', source)


if __name__ == "__main__":
    unittest.main()
