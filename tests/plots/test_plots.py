"""Tests of plots/ over made-up results folders. Run: python3 tests/plots/test_plots.py"""

import contextlib
import io
import json
import shutil
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "plots"), str(HERE), str(HERE.parent / "front_door")]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402

import bars  # noqa: E402
import cdf  # noqa: E402
import claims  # noqa: E402
import families  # noqa: E402
import fidelity  # noqa: E402
import frontier  # noqa: E402
import groups  # noqa: E402
import load  # noqa: E402
import load_curves  # noqa: E402
import names as naming  # noqa: E402
import pgf  # noqa: E402
import plot  # noqa: E402
import policies  # noqa: E402
import replay_predicts  # noqa: E402
import serving_fidelity  # noqa: E402
import setting  # noqa: E402
import settings  # noqa: E402
import style  # noqa: E402
import synthetic  # noqa: E402
import table  # noqa: E402
import test_front_door  # noqa: E402
import timeline  # noqa: E402

SCHEDULERS = ["static", "orca_max", "vllm_v0", "vllm_v1", "sarathi", "fastgen"]
RATE = "trace.arrival.poisson.rate_per_s"


style.plt.rcParams["figure.max_open_warning"] = 0


def _overlap(a, b, slack=1.0):
    """True where two boxes share more than `slack` pixels in both directions."""
    return min(a.x1, b.x1) - max(a.x0, b.x0) > slack and min(a.y1, b.y1) - max(a.y0, b.y0) > slack


class FigureTest(unittest.TestCase):
    """Draws into a temporary folder and keeps the figures open for inspection."""

    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="kvlab_plots_")) / "made_up"
        self.addCleanup(shutil.rmtree, self.folder.parent)
        self.addCleanup(style.plt.close, "all")
        self.drawn = {}

    def draw(self, every=False, write=True, recipe=None, overrides=()):
        """Names and notes of what is drawn; without `write` the slow part, the files, is left out."""
        save = style.save
        nothing = contextlib.nullcontext() if write else mock.patch.object(Figure, "savefig")

        def keep(figure, folder, name, *legend, **more):
            with mock.patch.object(style.plt, "close"):
                saved = save(figure, folder, name, *legend, **more)
            if saved:
                self.drawn[name] = figure
            return saved

        with nothing, mock.patch.object(style, "save", keep):
            drawn = plot.draw_all(self.folder, every, recipe, overrides)
        self.assertEqual(drawn.failures, [])
        for name in drawn.names if write else ():
            forms = settings.of(name).get("format", ("pdf", "png"))
            for path in [drawn.folder / name] if "." in name else [drawn.folder / f"{name}.{form}" for form in forms]:
                self.assertGreater(path.stat().st_size, 20, path)
        self.assertEqual(len(drawn.names), len(set(drawn.names)), "two figures under one name")
        return drawn.names, drawn.notes

    def axes(self, name):
        return self.drawn[name].axes

    def texts(self, name):
        """Title and note, each on one line."""
        return [t.get_text().replace("\n", " ") for t in self.drawn[name].texts]

    def legend(self, name):
        return [t.get_text() for t in self.drawn[name].legends[0].get_texts()]

    def assert_labelled_with_units(self):
        for name, figure in self.drawn.items():
            labels = [a.get_xlabel() + a.get_ylabel() for a in figure.axes]
            for axis, label in zip(figure.axes, labels):  # panels that share their axes are labelled at the edges alone
                shared = [a for a in figure.axes if axis.get_shared_x_axes().joined(axis, a) and axis.get_shared_y_axes().joined(axis, a)]
                self.assertTrue(label or any(a.get_xlabel() for a in shared), f"{name}: an axis without a label")
            self.assertTrue(any("(" in label for label in labels), f"{name}: no unit in {labels}")

    def assert_nothing_overlaps(self, name):
        """Title, legend, panels and note have places of their own, and all of them fit on a page."""
        figure = self.drawn[name]
        self.assertLessEqual(figure.get_figheight(), style.PAGE_HEIGHT_IN, name)
        figure.canvas.draw()
        renderer = figure.canvas.get_renderer()
        panels = [a.get_tightbbox(renderer) for a in figure.axes if a.get_visible()]
        others = [t.get_window_extent(renderer) for t in figure.texts] + [legend.get_window_extent(renderer) for legend in figure.legends]
        for i, box in enumerate(others):
            for other in panels + others[i + 1 :]:
                self.assertFalse(_overlap(box, other), f"{name}: {box} over {other}")
            self.assertTrue(-1 <= box.y0 and box.y1 <= figure.bbox.height + 1, f"{name}: cut")

    def assert_fits_a_column(self, of_a_page=()):
        for name, figure in self.drawn.items():
            width = style.PAGE_IN if name in of_a_page else style.COLUMN_IN
            self.assert_nothing_overlaps(name)
            self.assertAlmostEqual(figure.get_figwidth(), width, msg=name)
            box = figure.get_tightbbox(figure.canvas.get_renderer())
            self.assertGreater(box.x0, -0.03, f"{name} is cut on the left")
            self.assertLess(box.x1, width + 0.03, f"{name} is cut on the right")
            for legend in figure.legends:
                below = legend.get_window_extent().y0
                self.assertTrue(all(a.get_window_extent().y1 <= below + 1 for a in figure.axes), f"{name}: the legend covers data")


class OneRun(FigureTest):
    def test_figures_and_no_comparison(self):
        synthetic.write_runs(self.folder, {"scheduler": ["vllm_v1"]})
        names, _ = self.draw()
        self.assertEqual(names, ["cdf_ttft", "cdf_tpot", "cdf_e2e", "timeline", "summary.tex"])
        self.assertEqual(len(self.axes("cdf_ttft")[0].lines), 1)
        self.assertEqual(self.drawn["cdf_ttft"].legends, [])
        self.assert_labelled_with_units()
        self.assert_fits_a_column()

    def test_no_axes_at_all(self):
        synthetic.write_runs(self.folder, {})
        self.draw()
        self.assertIn("made\\_up &", (self.folder / "figures" / "summary.tex").read_text())

    def test_same_results_give_the_same_bytes(self):
        synthetic.write_runs(self.folder, {"scheduler": ["vllm_v1"]}, num_requests=20)
        self.draw()
        first = {p.name: p.read_bytes() for p in (self.folder / "figures").iterdir()}
        self.draw()
        self.assertEqual(first, {p.name: p.read_bytes() for p in (self.folder / "figures").iterdir()})

    def test_fonts_are_embedded_as_truetype(self):
        synthetic.write_runs(self.folder, {}, num_requests=20)
        self.draw()
        self.assertIn(b"/FontFile2", (self.folder / "figures" / "cdf_ttft.pdf").read_bytes())


class ManyRuns(FigureTest):
    def test_six_policies_and_five_seeds(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS}, seeds=(1, 2, 3, 4, 5), num_requests=60)
        names, notes = self.draw(write=False)
        self.assertEqual(len(self.axes("cdf_e2e")[0].lines), 6)
        self.assertEqual(self.legend("cdf_e2e"), ["Static batches", "orca_max", "vLLM V0", "vLLM V1", "Sarathi", "FastGen"])
        self.assertIn("timeline_sarathi", names)
        self.assertEqual(self.texts("comparison"), ["Mean and 95 % t-interval over n = 5 seeds."])
        self.assertEqual(notes, [])
        self.assert_labelled_with_units()
        self.assert_fits_a_column()

    def test_twelve_lines_all_look_different(self):
        synthetic.write_runs(self.folder, {"scheduler": [f"policy_{i:02d}" for i in range(12)]}, num_requests=40)
        self.draw(write=False)
        lines = self.axes("cdf_ttft")[0].lines
        self.assertEqual(len({(line.get_color(), line.get_marker()) for line in lines}), 12)
        self.assertEqual(len({(str(line._unscaled_dash_pattern), line.get_marker()) for line in lines}), 12)
        self.assert_fits_a_column()

    def test_long_labels_fit(self):
        policies = ["{sarathi: {chunk_tokens: 512}}", "{sarathi: {chunk_tokens: 2048}}"]
        synthetic.write_runs(self.folder, {"scheduler": policies, "router": ["least_outstanding", "prefix_affinity"]}, num_requests=40, slo=False)
        self.draw(write=False)
        self.assertEqual(self.legend("timeline")[0], "Sarathi (chunks of 512), Least outstanding")
        self.assert_fits_a_column(["comparison"])

    def test_lines_past_the_limit_are_counted(self):
        synthetic.write_runs(self.folder, {"memory.blocks": list(range(100, 3100, 100))}, num_requests=10)
        _, notes = self.draw(write=False)
        self.assertIn("cdf_ttft: 12 of 30 lines drawn", notes)


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
        for axis in (first, second):
            self.assertTrue(all(p.get_window_extent().width > 1 for p in axis.patches[:3]), "a bar that cannot be seen")

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


class Timelines(FigureTest):
    def test_title_has_policy_and_rate_and_files_share_their_ranges(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2], RATE: [2.0, 4.0, 8.0]}, num_requests=60)
        names, _ = self.draw(write=False)
        mine = [n for n in names if n.startswith("timeline")]
        self.assertEqual(len(mine), 6)
        self.assertEqual(self.texts("timeline_static_rate_per_s_2"), ["Static batches, 2 req/s", "n = 1 seed."])
        for panel in range(4):
            self.assertEqual(len({(self.axes(n)[panel].get_ylim(), self.axes(n)[panel].get_xlim()) for n in mine}), 1)
        self.assert_nothing_overlaps("timeline_static_rate_per_s_2")

    def test_a_number_has_the_name_of_its_axis(self):
        synthetic.write_runs(self.folder, {RATE: [1.0, 2.0, 3.0, 4.0, 5.0]}, seeds=(1, 2), num_requests=20)
        self.draw(write=False)
        self.assertEqual(self.texts("timeline_3"), ["3 req/s", "The first of 2 seeds."])


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

    def error_of(self, figures, *overrides):
        self.write(figures, {"scheduler": SCHEDULERS[2:4]})
        with self.assertRaises(load.ResultsError) as caught:
            self.draw(write=False, overrides=overrides)
        return str(caught.exception)

    def test_what_does_not_exist_is_an_error_with_what_does(self):
        for figures, override, message in (
                ("cdf_ttf: {size: [3, 2]}", None, "figures: unknown figure 'cdf_ttf'; did you mean 'cdf_ttft'?"),
                ("x: {metric: tttft}", None, "figures.x.metric: unknown 'tttft'; did you mean 'ttft'?"),
                ("x: {metric: ttft, x: rate}", None, "figures.x.x: no axis 'rate'; axes: scheduler"),
                ("x: {metric: ttft, statistic: p42}", None, "figures.x.statistic: unknown 'p42'; known: cdf, max, mean, p50"),
                ("x: {x: scheduler}", None, "figures.x: a figure of your own needs 'metric'"),
                ("comparison: {only: [vllm_v2]}", None, "figures.comparison.only: unknown 'vllm_v2'; did you mean 'vllm_v1'?"),
                ("", "figures.comparison.siz=1", "figures.comparison: unknown 'siz'; did you mean 'size'?"),
                ("", "figures.comparison.size=[1]", "figures.comparison.size: expected two numbers, [a, b]"),
                ("", "comparison.size=[1,2]", "expected figures.NAME.KEY=VALUE"),
                ("", "figures.comparison.format=svg", "figures.comparison.format: unknown 'svg'; known: pdf, pgf, png")):
            self.assertIn(message, self.error_of(figures, *([override] if override else [])))

    def test_keys_are_those_that_the_program_knows(self):
        source = (HERE.parents[1] / "app" / "runs" / "figure_settings.cpp").read_text()
        for key in (*settings.LOOK, *settings.DATA, *settings.JOIN):
            self.assertIn(f'"{key}"', source)


class Names(unittest.TestCase):
    def test_every_policy_has_one(self):
        root = HERE.parents[1] / "policies"
        ids = {p.stem for p in (root / "kv" / "recipes").glob("*.yaml")}
        known, _ = naming.table()
        self.assertEqual(sorted(ids - set(known)), [], "recipes without a line in plots/names.yaml")

    def test_names_of_different_policies_differ(self):
        known, _ = naming.table()
        self.assertEqual(len(set(known.values())), len(known))

    def test_labels_made_of_several_ids(self):
        settings.start(Path("/nowhere"))
        for label, text in (("snapkv (allocator pyramid) 128", "SnapKV (allocator pyramid) 128"), ("rate_per_s 2, vllm_v0", "2 req/s, vLLM V0"),
                            ("sarathi, budget_tokens 2048", "Sarathi, 2048 tokens"), ("prefix_affinity", "Prefix affinity"), ("unheard_of 3", "unheard_of 3")):
            self.assertEqual(naming.shown(label), text)
        settings.start(Path("/nowhere"), ["figures.all.names.vllm_v1#1=vLLM", "figures.f.names.snapkv=mine"])
        self.assertEqual([naming.shown("vllm_v1#1"), naming.shown("snapkv 64", "f"), naming.shown("snapkv 64", "g")], ["vLLM", "mine 64", "SnapKV 64"])


class Attainment(FigureTest):
    def test_a_curve_per_line_over_the_rates_that_were_tried(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[2:4]}, num_requests=10)
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str}).assign(search_rate_per_s=[4.0, 6.0])
        rows.to_csv(self.folder / "summary.csv", index=False)
        probes = [[run, i, rate, share, 0, int(share >= 0.9)] for run in rows["run"] for i, (rate, share) in enumerate(((1, 1.0), (16, 0.0), (4, 0.95), (8, 0.2)))]
        synthetic.write_csv(self.folder / "search.csv", "run probe rate_per_s slo_attainment_frac goodput_per_s attains".split(), probes)
        (self.folder / "resolved.yaml").write_text("search: {rate: [1, 16], attainment: 0.8}\n")
        names, _ = self.draw(write=False)
        self.assertIn("attainment", names)
        (axis,) = self.axes("attainment")
        self.assertEqual([list(axis.lines[0].get_xdata()), list(axis.lines[0].get_ydata())], [[1, 4, 8, 16], [100, 95, 20, 0]])
        self.assertTrue(any(list(line.get_ydata()) == [80, 80] for line in axis.lines), "no line at the share wanted")


    def test_a_search_over_replicas(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[2:4]}, num_requests=10)
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str}).assign(search_rate_per_s=None, search_replicas=[3, 2])
        rows.to_csv(self.folder / "summary.csv", index=False)
        probes = [[run, i, "", share, 0, int(share >= 0.9), "replicas", n] for run in rows["run"] for i, (n, share) in enumerate(((4, 1.0), (1, 0.0), (2, 0.5), (3, 0.95)))]
        synthetic.write_csv(self.folder / "search.csv", "run probe rate_per_s slo_attainment_frac goodput_per_s attains varied value".split(), probes)
        names, _ = self.draw(write=False)
        self.assertIn("attainment", names)
        (axis,) = self.axes("attainment")
        self.assertEqual([list(axis.lines[0].get_xdata()), list(axis.lines[0].get_ydata())], [[1, 2, 3, 4], [0, 50, 95, 100]])
        self.assertEqual(axis.get_xlabel(), "Replicas")


class Pgf(FigureTest):
    def test_source_has_the_data_and_balances(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[2:4], RATE: [2.0, 4.0]}, seeds=(1, 2), num_requests=10)
        (self.folder / "timeline.csv").unlink()
        self.draw(overrides=["figures.all.format=pgf"])
        self.assertEqual(list((self.folder / "figures").glob("*.pdf")), [])
        for path in (self.folder / "figures").glob("*.pgf"):
            text = path.read_text()
            for opening, closing in (("{", "}"), (r"\begin{axis}", r"\end{axis}"), (r"\begin{tikzpicture}", r"\end{tikzpicture}")):
                self.assertEqual(text.replace(r"\{", "").replace(r"\}", "").count(opening), text.replace(r"\{", "").replace(r"\}", "").count(closing), path)
            self.assertNotIn("nan", text)
            self.assertEqual(text.count(r"\begin{axis}"), len([a for a in self.axes(path.stem) if a.get_visible()]))
        goodput = (self.folder / "figures" / "goodput.pgf").read_text()
        self.assertIn(r"\addlegendentry{vLLM V0}", goodput)
        self.assertIn(r"xlabel={Arrival rate (requests/s)}", goodput)
        self.assertEqual(pgf.escape("50 % − a_b"), r"50 \% $-$ a\_b")

    def test_a_heat_map_is_the_pdf(self):
        synthetic.write_replay(self.folder)
        with mock.patch.object(fidelity, "maps", lambda *_: ()), mock.patch.object(fidelity, "_fidelity_over", lambda *_: None):
            self.draw(overrides=["figures.needles.format=pgf"])
        self.assertEqual((self.folder / "figures" / "needles.pgf").read_text(), "\\includegraphics{needles.pdf}\n")
        self.assertTrue((self.folder / "figures" / "needles.pdf").exists())


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


class MissingValues(FigureTest):
    def write(self, axes, missing, metrics):
        synthetic.write_runs(self.folder, axes, num_requests=20)
        for table in ("requests", "timeline"):
            (self.folder / f"{table}.csv").unlink()
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str})
        rows.loc[rows["run"].isin(missing), metrics] = np.nan
        rows.to_csv(self.folder / "summary.csv", index=False)

    def test_the_unit_is_that_of_the_values_there_are(self):
        for missing in ("0001", "0002"):
            self.write({"scheduler": SCHEDULERS[:3]}, [missing], "ttft_p99_ms")
            self.draw(write=False)
            self.assertEqual(self.axes("comparison")[0].get_xlabel(), "P99 TTFT (ms)")

    def test_a_figure_without_any(self):
        metrics = ["ttft_p99_ms", "tpot_p99_ms", "goodput_per_s", "output_tokens_per_s"]
        self.write({"scheduler": SCHEDULERS, RATE: [1.0, 2.0, 4.0]}, [f"{run:04}" for run in range(1, 19, 3)], metrics)
        self.draw(write=False)
        self.assertEqual([t.get_text() for a in self.axes("comparison_rate_per_s_1") for t in a.texts], [])
        self.assertEqual(len(self.axes("comparison_rate_per_s_2")[0].texts), 6)


class RateSweep(FigureTest):
    def setUp(self):
        super().setUp()
        rates = [1.0, 2.0, 4.0, 6.0, 8.0, 10.0]
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:4], RATE: rates}, seeds=(1, 2, 3), num_requests=30)

    def test_curves_and_a_few_rates(self):
        names, notes = self.draw()
        self.assertEqual(len([line for line in self.axes("goodput")[0].lines if line.get_marker() not in ("None", "|", "_")]), 4)
        self.assertEqual(self.legend("goodput"), ["Static batches", "orca_max", "vLLM V0", "vLLM V1"])
        self.assertEqual(self.axes("goodput")[0].get_xlabel(), "Arrival rate (requests/s)")
        self.assertEqual([n for n in names if n.startswith("cdf_ttft")], ["cdf_ttft"])
        self.assertEqual([a.get_title() for a in self.axes("cdf_ttft")], [f"{r} req/s" for r in (1, 2, 4, 6, 8, 10)])
        self.assertEqual({len(a.lines) for a in self.axes("cdf_ttft")}, {4})
        self.assertIn(f"comparison_rate_per_s_1: 4 of 6 values of {RATE} drawn", notes)
        self.assert_labelled_with_units()
        self.assert_fits_a_column()

    def test_all_draws_every_rate(self):
        names, notes = self.draw(every=True, write=False)
        self.assertEqual(len([n for n in names if n.startswith("comparison")]), 6)
        self.assertEqual(notes, [])

    def test_points_are_means_over_seeds(self):
        results = load.load(self.folder)
        rows = results.summary[results.summary["scheduler"] == "static"]
        rate, mean, half = load_curves.points(rows, RATE, "ttft_p99_ms")[2]
        values = rows.loc[rows[RATE] == 4.0, "ttft_p99_ms"]
        self.assertEqual((rate, len(values)), (4.0, 3))
        self.assertAlmostEqual(mean, values.mean())
        self.assertAlmostEqual(half, 4.303 * values.std() / np.sqrt(3))


class HitRatio(FigureTest):
    def test_belady_is_the_upper_line(self):
        synthetic.write_hit_ratios(self.folder)
        names, _ = self.draw()
        self.assertEqual(names, ["hit_ratio", "hit_ratio_tokens", "summary.tex"])
        (axis,) = self.axes("hit_ratio")
        self.assertEqual(axis.get_xscale(), "log")
        self.assertEqual(len(axis.lines), 7)
        self.assertEqual(self.legend("hit_ratio")[0], "Belady (upper bound)")
        self.assertEqual(axis.get_xlabel(), "Cache size (GiB)")
        belady = next(line for line in axis.lines if line.get_color() == "black")
        for line in axis.lines:
            self.assertTrue(np.all(belady.get_ydata() >= line.get_ydata()))
        self.assert_labelled_with_units()
        self.assert_fits_a_column()

    def table(self):
        text = (self.folder / "figures" / "summary.tex").read_text()
        return text[text.index(r"\midrule") : text.index(r"\bottomrule")].splitlines()[1:]

    def test_the_table_has_a_line_per_policy(self):
        synthetic.write_hit_ratios(self.folder, ("lru", "arc"), (9000,))
        self.draw(write=False)
        self.assertEqual(self.table(), [r"LRU & 0.392 \\", r"ARC & 0.378 \\"])

    def test_the_table_has_a_line_for_each_value_of_other_axes(self):
        synthetic.write_hit_ratios(self.folder, ("lru", "arc"), (9000,), limits=(50, 100))
        names, _ = self.draw(write=False)
        self.assertEqual(self.table(), [r"LRU, 50 requests & 0.392 \\", r"ARC, 50 requests & 0.378 \\",
                                        r"LRU, 100 requests & 0.196 \\", r"ARC, 100 requests & 0.189 \\"])
        self.assertEqual(names[:2], ["hit_ratio_50", "hit_ratio_100"])  # ratios of tokens are those of blocks here: no figure of their own


def write_graded(folder, policies, budget="budget_tokens", more=()):
    """Answers on two tasks: (kv_policy, kv_policy.recipe, the budget's axis, right answers) of each policy, and values of more axes after these."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for i, (at, recipe, value, right, *others) in enumerate(policies):
        name = recipe or at.split()[0]
        family, share = ("reference", 1.0) if name == "full" else ("attention", 0.1)
        for task in ("NA", "copy"):
            rows.append([f"{i:04}", at, recipe, value, *others, 1, name, 128, task, 1024, 4, right, 0.5, 0.7, share, 0, 1, 1.0, *[""] * 7, family])
    synthetic.write_csv(folder / "summary.csv", ["run", "kv_policy", "kv_policy.recipe", f"kv_policy.{budget}", *more, "seed", *synthetic.GRADED], rows)
    return folder


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
            self.assertFalse(_overlap(a, b))

    def test_folders_without_a_common_policy_have_no_figure(self):
        self.write((("budget_tokens 64", "snapkv"),))
        drawn = plot.draw_joint([self.folder / "graded", self.folder / "served"])
        self.assertEqual(drawn.names, [])
        for text in ("no joint figure: no KV policy is in both folders", "snapkv 512", "serves snapkv 64"):
            self.assertIn(text, drawn.notes[0])
        synthetic.write_csv(self.folder / "served" / "summary.csv", ["run", "host", "seed", "tpot_mean_ms", "e2e_mean_ms"], [["0001", "sim", 1, 2.0, 3.0]])
        self.assertIn("serves one policy", plot.draw_joint([self.folder / "graded", self.folder / "served"]).notes[0])


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
        self.assertEqual(load.axis_title("replicas"), "Replicas")

    def test_goodput_replaces_latency_only_with_an_slo(self):
        self.assertNotIn("goodput_per_s", [c for c, _ in bars.metrics_of(pd.DataFrame({"goodput_per_s": [np.nan]}))])
        self.assertIn("goodput_per_s", [c for c, _ in bars.metrics_of(pd.DataFrame({"goodput_per_s": [1.0]}))])


class EarlierResults(FigureTest):
    """Figures of results that are no longer there."""

    def setUp(self):
        super().setUp()
        self.figures = self.folder / "figures"

    def run_and_draw(self, schedulers):
        synthetic.write_runs(self.folder, {"scheduler": schedulers}, num_requests=5)
        (self.folder / "requests.csv").unlink()
        self.draw()

    def there(self, pattern="timeline*.pdf"):
        return sorted(p.name for p in self.figures.glob(pattern))

    def test_they_are_deleted(self):
        self.run_and_draw(SCHEDULERS)
        self.assertEqual(self.there(), sorted(f"timeline_{s}.pdf" for s in SCHEDULERS))
        self.run_and_draw(SCHEDULERS[:5])
        self.assertEqual(self.there("timeline*"), sorted(f"timeline_{s}.{kind}" for s in SCHEDULERS[:5] for kind in ("pdf", "png")))
        self.run_and_draw(SCHEDULERS[:1])
        self.assertEqual(self.there("*"), [".drawn", "summary.tex", "timeline.pdf", "timeline.png"])
        synthetic.write_runs(self.folder, {"scheduler": []}, num_requests=0)
        self.draw()
        self.assertEqual(self.there("*"), [".drawn"])

    def test_files_of_others_stay(self):
        self.run_and_draw(SCHEDULERS)
        (self.figures / "timeline_other.pdf").write_text("mine")
        (self.figures / "timeline_static.pdf").write_text("mine")  # in place of ours
        (self.figures / "timeline_sarathi.png").unlink()
        self.run_and_draw(SCHEDULERS[:1])
        self.assertEqual(self.there(), ["timeline.pdf", "timeline_other.pdf", "timeline_static.pdf"])
        self.run_and_draw(SCHEDULERS[:2])
        self.assertEqual(self.there(), ["timeline.pdf", "timeline_other.pdf", "timeline_static.pdf"])

    def test_a_file_of_others_is_not_replaced(self):
        self.run_and_draw(SCHEDULERS[:2])
        (self.figures / "timeline.pdf").write_text("mine")
        with self.assertRaisesRegex(load.ResultsError, "timeline.pdf: was not drawn by kvlab"):
            self.run_and_draw(SCHEDULERS[:1])
        self.assertEqual((self.figures / "timeline.pdf").read_text(), "mine")
        (self.figures / "timeline.pdf").unlink()
        (self.figures / "timeline.pdf").symlink_to(self.folder / "summary.csv")
        with self.assertRaisesRegex(load.ResultsError, "is a symbolic link"):
            self.run_and_draw(SCHEDULERS[:1])

    def test_what_was_cut_off_while_drawing_is_ours(self):
        self.run_and_draw(SCHEDULERS[:1])
        with (self.figures / ".drawn").open("a") as file:
            file.write("drawing  timeline.pdf\n")
        (self.figures / "timeline.pdf").write_text("half")
        self.run_and_draw(SCHEDULERS[:1])
        self.assertTrue((self.figures / "timeline.pdf").read_bytes().startswith(b"%PDF"))

    def test_the_list_names_nothing_outside_of_the_folder(self):
        self.run_and_draw(SCHEDULERS[:1])
        (self.folder / "summary.tex").write_bytes((self.figures / "summary.tex").read_bytes())
        text = (self.figures / ".drawn").read_text()
        (self.figures / ".drawn").write_text(text + text.replace("  summary.tex", "  ../summary.tex") + "no list\n")
        self.run_and_draw(SCHEDULERS[:2])
        self.assertTrue((self.folder / "summary.tex").exists())

    def test_of_the_same_results_nothing_is_deleted(self):
        synthetic.write_replay(self.folder)
        for recipe in ("snapkv", "streaming", None):
            self.draw(recipe=recipe)
        self.assertEqual(self.there("fidelity_heads_s*.pdf"), ["fidelity_heads_snapkv.pdf", "fidelity_heads_streaming.pdf"])
        synthetic.write_replay(self.folder, budgets=(64, 128))
        self.draw()
        self.assertEqual(self.there("fidelity_heads_s*"), [])


class LeftOut(FigureTest):
    """Notes on stderr."""

    def test_figures_of_which_the_same_is_said_share_a_line(self):
        synthetic.write_runs(self.folder, {"memory.blocks": list(range(100, 3100, 100))}, num_requests=10)
        (self.folder / "timeline.csv").unlink()
        heard = io.StringIO()
        with contextlib.redirect_stderr(heard), mock.patch.object(Figure, "savefig"):
            plot.main([str(self.folder)])
        self.assertEqual(heard.getvalue().splitlines()[:-1], ["  cdf_ttft and 2 more: 12 of 30 lines drawn", "  comparison: 24 of 30 lines drawn"])

    def test_they_are_printed_after_a_run(self):
        synthetic.write_runs(self.folder, {"memory.blocks": list(range(100, 3100, 100))}, num_requests=10)
        for file in ("timeline", "requests"):
            (self.folder / f"{file}.csv").unlink()
        door = test_front_door.FrontDoor("kvlab")
        door.setUp()
        self.addCleanup(door.doCleanups)
        shutil.copytree(HERE.parents[1] / "plots", door.root / "plots", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        result = door.kvlab("run", str(self.folder))
        self.assertIn("  comparison: 24 of 30 lines drawn\nkvlab: drew 2 figures and tables into ", result.stderr)
        self.assertEqual(result.stdout, f"wrote {self.folder}\n")


class Failures(FigureTest):
    """Errors that nobody foresaw."""

    def draw_with(self, *patches):
        heard = io.StringIO()
        with contextlib.ExitStack() as stack:
            for patch in (mock.patch.object(Figure, "savefig"), contextlib.redirect_stderr(heard), *patches):
                stack.enter_context(patch)
            status = plot.main([str(self.folder)])
        return status, heard.getvalue().splitlines()

    def test_a_kind_that_fails_leaves_the_others_and_the_table(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2]}, num_requests=10)
        status, lines = self.draw_with(mock.patch.object(timeline, "of_run", side_effect=IndexError("list index\nout of range")))
        self.assertEqual(status, 1)
        self.assertRegex(lines[0], r"^kvlab plot: not drawn: timeline: IndexError: list index out of range \(timeline.py:\d+\)$")
        self.assertRegex(lines[1], "^kvlab: drew 5 figures and tables into ")
        self.assertEqual(len(lines), 2)
        self.assertTrue((self.folder / "figures" / "summary.tex").exists())

    def test_a_table_that_fails(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2]}, num_requests=10)
        status, lines = self.draw_with(mock.patch.object(table, "tabular", side_effect=ValueError("made up")))
        self.assertEqual((status, len(lines)), (1, 2))
        self.assertIn("not drawn: summary.tex: ValueError: made up (table.py:", lines[0])
        self.assertIn("drew 5 figures", lines[1])

    def test_nothing_fails(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2]}, num_requests=10)
        status, lines = self.draw_with()
        self.assertEqual((status, len(lines)), (0, 1))


class BadFolders(FigureTest):
    def error_of(self, *arguments):
        heard = io.StringIO()
        with contextlib.redirect_stderr(heard):
            status = plot.main([str(self.folder), *arguments])
        self.assertEqual(status, 2)
        self.assertEqual(heard.getvalue().count("\n"), 1, heard.getvalue())
        return heard.getvalue()

    def drop(self, file, column):
        path = self.folder / file
        pd.read_csv(path, dtype={"run": str}).drop(columns=column).to_csv(path, index=False)

    def test_missing_columns(self):
        for file, column in (("requests.csv", "first_token_ns"), ("summary.csv", "tpot_p99_ms"), ("timeline.csv", "used_blocks")):
            synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2]}, num_requests=10)
            self.drop(file, column)
            self.assertIn(f"{file}: no column '{column}'", self.error_of())

    def test_replay(self):
        synthetic.write_replay(self.folder)
        self.assertIn("has no recipe 'h2o'; it has: streaming, snapkv, kivi2", self.error_of("--recipe", "h2o"))
        self.drop("summary.csv", "needle_kept")
        self.assertIn("summary.csv: no column 'needle_kept'", self.error_of())

    def test_not_a_results_folder(self):
        self.assertIn("no such folder", self.error_of())
        self.folder.mkdir()
        self.assertIn("no summary.csv", self.error_of())
        (self.folder / "summary.csv").write_text("")
        self.assertIn("summary.csv: empty", self.error_of())
        (self.folder / "summary.csv").write_text("a,b\n1,2\n")
        self.assertIn("expected columns 'run'", self.error_of())
        (self.folder / "summary.csv").write_text("run,seed\n1,2\n1,2,3,4\n")
        self.assertIn("not a table", self.error_of())

    def test_no_requests(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2]}, num_requests=0)
        names, _ = self.draw(write=False)
        self.assertEqual([n for n in names if n.startswith("cdf")], [])

    def test_no_rows_at_all(self):
        synthetic.write_runs(self.folder, {"scheduler": []}, num_requests=0)
        names, _ = self.draw(write=False)
        self.assertEqual(names, [])

    def test_only_the_summary(self):
        synthetic.write_runs(self.folder, {"scheduler": SCHEDULERS[:2]}, num_requests=10)
        (self.folder / "requests.csv").unlink()
        (self.folder / "timeline.csv").unlink()
        names, _ = self.draw(write=False)
        self.assertEqual(names, ["comparison", "summary.tex"])


class Claims(unittest.TestCase):
    HEADER = "name,system,published,published_to,no_effect,unit,ours,counts,verdict"

    def draw(self, rows):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "claims.csv").write_text("\n".join([self.HEADER, *rows]) + "\n")
            saved = []
            with mock.patch.object(style, "save", side_effect=lambda figure, *rest, **options: saved.append((figure, rest))):
                list(claims.draw(load.load(folder), Path(folder) / "figures"))
            return saved

    def test_a_row_per_claim_with_both_figures(self):
        rows = [f"claim_{i},s,2,4,1,x,{i + 1},factor,reproduced" for i in range(14)] + ["last_one,s,40,40,,%,20,number,not_reproduced", "bad,s,2,2,1,x,,factor,error"]
        ((figure, (_, name, handles, labels)),) = self.draw(rows)
        self.assertEqual(name, "claims")
        self.assertEqual(labels[1:], ["ours: reproduced (14)", "ours: direction only (0)", "ours: not reproduced (1)"])
        names = [label.get_text() for axis in figure.axes for label in axis.get_yticklabels()]
        self.assertEqual(len(names), 15)
        self.assertEqual(names[-1], "last one (%)")
        self.assertTrue(all(axis.get_xscale() == "log" for axis in figure.axes))

    def test_without_a_measured_claim_there_is_no_figure(self):
        self.assertEqual(self.draw(["bad,s,2,2,1,x,,factor,error"]), [])


if __name__ == "__main__":
    unittest.main()
