"""Tests of python/kvlab/report: the page's data over made-up and real results, and the file itself (in a browser: test_report_in_browser.py).
Run: python3 tests/plots/test_report.py"""

import contextlib
import csv
import io
import json
import shutil
import subprocess
import sys
import unittest
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT / "python" / "kvlab" / "report"), str(ROOT / "plots"), str(HERE)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import lives  # noqa: E402
import page  # noqa: E402
import report  # noqa: E402
import spec  # noqa: E402
import style  # noqa: E402
import synthetic  # noqa: E402
from report_case import RATE, ReportTest  # noqa: E402
from results_of import data_of  # noqa: E402

PROGRAM = ROOT / "build" / "release" / "kvlab"
MANY = 100_000


class TheFile(ReportTest):
    def test_it_parses_and_names_no_address(self):
        synthetic.write_runs(self.folder, {"scheduler": ["vllm_v1", "sarathi"]}, num_requests=20)
        found = self.write()
        self.assertEqual((found.open, found.wrong), ([], []))
        self.assertEqual(found.addresses, [])
        own = "\n".join(text for attributes, text in found.scripts[1:])
        self.assertNotRegex(own, r"https?://|url\(|@import|import\(|fetch\(|XMLHttpRequest|WebSocket")
        self.assertIn("default-src 'none'", (self.folder / "report.html").read_text())

    def test_numbers_are_those_of_the_summary(self):
        synthetic.write_runs(self.folder, {"scheduler": ["vllm_v1", "sarathi"], RATE: [2.0, 4.0]}, seeds=(1, 2), num_requests=20)
        with (self.folder / "summary.csv").open(newline="") as file:
            columns, *rows = csv.reader(file)
        table = self.write().data()["results"][0]["summary"]
        self.assertEqual((table["columns"], table["rows"], table["total"]), (columns, rows, 8))
        self.assertIn("ttft_p99_ms", [columns[c] for c in table["shown"]])

    def test_text_of_the_results_stays_text(self):
        names = ["</script><script>alert(1)</script>", "<img src=x onerror=alert(1)>"]
        synthetic.write_runs(self.folder, {"scheduler": names}, num_requests=5)
        (self.folder / "manifest.json").write_text(json.dumps({"experiment": "<!--<script>"}))
        found = self.write()
        self.assertEqual(found.tags.count("script"), 3)
        self.assertNotIn("img", found.tags)
        self.assertEqual(found.data()["title"], "<!--<script>")
        self.assertEqual([row[1] for row in found.data()["results"][0]["summary"]["rows"]], names)

    def test_it_replaces_its_own_page_and_no_other_file(self):
        synthetic.write_runs(self.folder, {}, num_requests=5)
        self.write()
        self.write()
        (self.folder / "report.html").write_text("mine")
        status, said = self.main(self.folder)
        self.assertEqual((status, (self.folder / "report.html").read_text()), (2, "mine"))
        self.assertIn("report.html: was not written by kvlab report: move it away, or name another file with --out", said)
        self.assertEqual(self.main(self.folder, "--out", self.top / "other" / "x.html")[0], 0)
        (self.top / "link.html").symlink_to(self.folder / "report.html")
        self.assertIn("is a symbolic link", self.main(self.folder, "--out", self.top / "link.html")[1])

    def test_a_missing_library_is_named(self):
        with mock.patch.object(page, "_VENDOR", self.top):
            synthetic.write_runs(self.folder, {}, num_requests=5)
            heard = io.StringIO()
            with contextlib.redirect_stderr(heard):
                self.assertEqual(report.main([str(self.folder)]), 2)
        self.assertEqual(
            heard.getvalue(),
            f"kvlab report: {self.top}: has no plotly-VERSION.min.js, which ships with kvlab: check it out or install kvlab again\n",
        )

    def test_the_library_ships_with_its_licence(self):
        self.assertRegex(page.library()[:300], r"plotly\.js v\d+\.\d+\.\d+[\s\S]*Licensed under the MIT license")
        licence = Path(page.__file__).parent / "vendor" / "plotly-LICENSE.txt"
        self.assertIn("Plotly Technologies Inc.", licence.read_text())

    def test_a_page_that_is_too_large_has_fewer_requests_and_says_so(self):
        synthetic.write_runs(self.folder, {"scheduler": ["a", "b"]}, num_requests=400)
        with mock.patch.object(page, "library", lambda: ""), mock.patch.object(report, "_MOST_REQUESTS", (MANY, 100)):
            whole, few = (len(page.content_of(data_of([self.folder], most))) for most in (MANY, 100))
            with mock.patch.object(page, "MOST_BYTES", (whole + few) // 2):
                path, left_out = report.write([self.folder])
            self.assertEqual(path.stat().st_size, few)
            self.assertEqual(len(left_out), 1)
            self.assertRegex(left_out[0], r"^requests: 100 of 800 are in the explorer")
            with mock.patch.object(page, "MOST_BYTES", 1000), self.assertRaisesRegex(
                report.ResultsError, "would have .* MB without requests"
            ):
                report.write([self.folder])


class Runs(ReportTest):
    def test_failed_and_stopped_runs_are_listed(self):
        synthetic.write_runs(self.folder, {"scheduler": ["a", "b"]}, num_requests=5)
        runs = [
            {"run": "0001", "state": "done"},
            {"run": "0002", "state": "unchanged"},
            {"run": "0003", "state": "failed", "axes": {"scheduler": "c"}, "error": "c.yaml:3:1: no"},
            {"run": "0004", "state": "not run"},
        ]
        (self.folder / "manifest.json").write_text(json.dumps({"name": "x", "runs": runs}))
        about = data_of([self.folder], MANY)["results"][0]
        self.assertEqual([(r["state"], r["error"]) for r in about["failed"]], [("failed", "c.yaml:3:1: no"), ("not run", "")])
        self.assertEqual(len(about["runs"]), 4)

    def test_without_rows_or_other_tables(self):
        synthetic.write_runs(self.folder, {"scheduler": []}, num_requests=0)
        data = data_of([self.folder], MANY)
        self.assertEqual((data["figures"], data["runs"]), ([], []))
        synthetic.write_runs(self.folder, {"scheduler": ["a", "b"]}, num_requests=5)
        for name in ("requests.csv", "timeline.csv", "manifest.json"):
            (self.folder / name).unlink()
        data = data_of([self.folder], MANY)
        self.assertEqual(([f["key"] for f in data["figures"]], data["runs"]), (["comparison"], []))

    def test_command_remarks_and_credibility(self):
        synthetic.write_runs(self.folder, {"scheduler": ["a", "b"]}, num_requests=5)
        runs = [{"run": r, "state": "done", "cost_source": "profile x", "note": "n"} for r in ("0001", "0002")]
        manifest = {"file": "my exp.yaml", "set": ["a=[1, 2]", "b=it's"], "runs": runs}
        (self.folder / "manifest.json").write_text(json.dumps(manifest))
        about = data_of([self.folder], MANY)["results"][0]
        self.assertEqual(about["command"], "./kvlab run 'my exp.yaml' --set 'a=[1, 2]' --set 'b=it'\\''s'")
        self.assertEqual(about["remarks"], [{"kind": "note", "text": "n", "runs": ["0001", "0002"]}])
        self.assertEqual(
            about["credibility"],
            ["step time 10.0 % measured, 10.0 % interpolated, 10.0 % extrapolated; overload 10.0 % of time; KV blocks given; profile x"],
        )

    def test_errors_are_exact(self):
        self.assertIn("no such folder", self.main(self.folder)[1])
        self.folder.mkdir()
        self.assertEqual(self.main(self.folder), (2, f"kvlab report: {self.folder}: no summary.csv; not a results folder?\n"))
        (self.folder / "requests.csv").write_text("run,request\n")
        self.assertIn("no summary.csv; not a results folder?", self.main(self.folder)[1])
        (self.folder / "summary.csv").write_text("run,seed,colour\n1,1,red\n")
        self.assertIn("summary.csv: of no kind that a report is made of: no column 'ttft_p50_ms' (serving)", self.main(self.folder)[1])
        synthetic.write_runs(self.folder, {}, num_requests=5)
        (self.folder / "manifest.json").write_text("{")
        self.assertIn("manifest.json: not JSON", self.main(self.folder)[1])
        self.assertIn("3 folders: a page shows one or two", self.main(self.folder, self.folder, self.folder)[1])

    def test_timelines_of_every_run(self):
        synthetic.write_runs(self.folder, {"scheduler": ["a", "b"]}, seeds=(1, 2), num_requests=30)
        runs = data_of([self.folder], MANY)["runs"]
        self.assertEqual([r["label"] for r in runs], ["a, seed 1", "a, seed 2", "b, seed 1", "b, seed 2"])
        for run in runs:
            self.assertEqual({len(v) for v in run["timeline"].values()}, {len(run["timeline"]["time_s"])})

    def test_two_results_share_figures_and_keep_their_names(self):
        for name in ("one", "two"):
            synthetic.write_runs(self.top / name, {"scheduler": ["a", "b"]}, num_requests=20)
            (self.top / name / "manifest.json").write_text(json.dumps({"experiment": "same"}))
        data = data_of([self.top / "one", self.top / "two"], MANY)
        self.assertEqual([r["name"] for r in data["results"]], ["same (one)", "same (two)"])
        lines = next(f for f in data["figures"] if f["key"] == "cdf_ttft")["options"][0]["traces"]
        self.assertEqual([t["name"] for t in lines], ["same (one): a", "same (one): b", "same (two): a", "same (two): b"])
        self.assertEqual(lines[0]["line"]["color"], lines[2]["line"]["color"])
        self.assertNotEqual(lines[0]["line"]["dash"], lines[2]["line"]["dash"])
        self.assertEqual([r["result"] for r in data["runs"]], [0, 0, 1, 1])


class Figures(ReportTest):
    def figures(self):
        return {f["key"]: f for f in data_of([self.folder], MANY)["figures"]}

    def test_of_a_swept_rate(self):
        synthetic.write_runs(self.folder, {"scheduler": ["a", "b"], RATE: [2.0, 4.0, 8.0]}, seeds=(1, 2), num_requests=40)
        (self.folder / "resolved.yaml").write_text("slo: {ttft_ms: 200}\n")
        found, rows = self.figures(), pd.read_csv(self.folder / "summary.csv")
        mean = rows[rows["scheduler"] == "b"].groupby(RATE)[["requests_per_s", "ttft_p99_ms", "goodput_per_s"]].mean()
        p99 = next(o for o in found["throughput_latency_ttft"]["options"] if o["name"] == "P99 TTFT")
        np.testing.assert_allclose(p99["traces"][1]["x"], mean["requests_per_s"], rtol=1e-5)
        np.testing.assert_allclose(p99["traces"][1]["y"], mean["ttft_p99_ms"], rtol=1e-5)
        self.assertEqual([s["y0"] for s in p99["layout"]["shapes"]], [200.0])
        np.testing.assert_allclose(found["goodput"]["options"][0]["traces"][1]["y"], mean["goodput_per_s"], rtol=1e-5)
        self.assertIn("Mean and 95 % t-interval over n = 2 seeds", p99["note"])
        bars = {o["name"]: o for o in found["comparison"]["options"]}
        self.assertEqual(len(bars["P99 TTFT (ms)"]["traces"][0]["y"]), 6)

    def test_a_cdf_ends_at_the_slowest_request(self):
        synthetic.write_runs(self.folder, {"scheduler": ["a"]}, num_requests=900)
        requests = pd.read_csv(self.folder / "requests.csv")
        trace = self.figures()["cdf_e2e"]["options"][0]["traces"][0]
        e2e = (requests["last_token_ns"] - requests["arrival_ns"]) / 1e6
        self.assertEqual((len(trace["x"]), trace["y"][-1]), (300, 1.0))
        np.testing.assert_allclose((trace["x"][0], trace["x"][-1]), (e2e.min(), e2e.max()), rtol=1e-5)

    def test_looks_are_those_of_the_figures_on_paper(self):
        synthetic.write_runs(self.folder, {"scheduler": [f"policy_{i:02}" for i in range(12)]}, num_requests=5)
        lines = self.figures()["cdf_ttft"]["options"][0]["traces"]
        self.assertEqual([t["line"]["color"] for t in lines], [style.line(i)["color"] for i in range(12)])
        self.assertEqual(len({(t["line"]["dash"], t["marker"]["symbol"]) for t in lines}), 12)

    def test_lines_past_the_limit_are_named(self):
        synthetic.write_runs(self.folder, {"memory.blocks": list(range(100))}, num_requests=2)
        data = data_of([self.folder], MANY)
        option = next(f for f in data["figures"] if f["key"] == "cdf_ttft")["options"][0]
        self.assertEqual(len(option["traces"]), 60)
        self.assertEqual(option["note"].count(","), 39)
        self.assertIn("Time to first token: CDF: lines after 60 of a figure", data["left_out"])

    def test_of_other_kinds(self):
        synthetic.write_hit_ratios(self.folder, limits=(50, 100))
        names = [o["name"] for o in self.figures()["hit_ratio"]["options"]]
        self.assertEqual(names, ["% of blocks, 50", "% of tokens, 50", "% of blocks, 100", "% of tokens, 100"])
        shutil.rmtree(self.folder)
        synthetic.write_replay(self.folder)
        found = self.figures()
        self.assertEqual(list(found), ["fidelity_bytes", "fidelity_attended", "fidelity_heads", "fidelity_steps"])
        self.assertEqual([o["name"] for o in found["fidelity_heads"]["options"]], ["budget tokens 128", "budget tokens 512"])
        snapkv = next(t for t in found["fidelity_bytes"]["options"][0]["traces"] if t["name"] == "SnapKV")
        self.assertEqual((snapkv["x"], snapkv["y"]), ([0.128, 0.512], [0.84375, 0.960938]))
        shutil.rmtree(self.folder)
        synthetic.write_predictions(self.folder)
        found = self.figures()
        self.assertEqual(found["accuracy_tasks"]["options"][0]["traces"][0]["z"][0], [100.0, 100.0])
        self.assertIn("A cell has 10 answers.", found["accuracy_tasks"]["options"][0]["note"])
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        synthetic.write_validation(self.folder)
        self.assertEqual(list(self.figures()), ["validation_error", "validation_throughput"])

    def test_a_search_over_rates_in_an_older_file(self):
        synthetic.write_runs(self.folder, {}, num_requests=5)
        (self.folder / "search.csv").write_text("run,probe,rate_per_s,slo_attainment_frac,goodput_per_s,attains\n0001,1,8,0.25,2,0\n0001,2,2,1,2,1\n")
        found = self.figures()["search"]
        self.assertEqual(found["title"], "Search: SLO attainment at every rate tried")
        (state,) = found["options"]
        self.assertEqual([(t["x"], t["y"]) for t in state["traces"]], [([2, 8], [1, 0.25])])
        self.assertEqual(state["layout"]["xaxis"]["title"]["text"], "Arrival rate (requests/s)")

    def test_a_search_over_replicas(self):
        synthetic.write_runs(self.folder, {"scheduler": ["orca", "sarathi"]}, num_requests=5)
        header = "run,probe,rate_per_s,slo_attainment_frac,goodput_per_s,attains,varied,value\n"
        tried = "0001,1,,1,2,1,replicas,4\n0001,2,,0.5,2,0,replicas,1\n0002,1,,,,0,replicas,2\n"  # the last one was not judged
        (self.folder / "search.csv").write_text(header + tried)
        found = self.figures()["search"]
        self.assertEqual(found["title"], "Search: SLO attainment at every number of replicas tried")
        (state,) = found["options"]
        self.assertEqual([(t["name"], t["x"], t["y"]) for t in state["traces"]], [("Orca", [1, 4], [0.5, 1])])
        self.assertEqual(state["layout"]["xaxis"]["title"]["text"], "Replicas")

    def test_numbers_that_do_not_exist_are_null(self):
        self.assertEqual(spec.numbers([1.23456789, float("nan"), float("inf")]), [1.23457, None, None])


class Lives(ReportTest):
    def test_parts_cover_a_life_without_gaps(self):
        nan = float("nan")
        self.assertEqual(lives.parts(0, 10, 30, 100, []), [("queued", 0, 10), ("prefill", 10, 30), ("decode", 30, 100)])
        extra = [("transfer", 30, 40), ("preempted", 35, 60), ("preempted", 90, 200)]
        self.assertEqual(
            lives.parts(0, 10, 30, 100, extra),
            [
                ("queued", 0, 10),
                ("prefill", 10, 30),
                ("transfer", 30, 35),
                ("preempted", 35, 60),
                ("decode", 60, 90),
                ("preempted", 90, 100),
            ],
        )
        self.assertEqual(lives.parts(0, 10, nan, nan, extra), [("queued", 0, 10)])

    def test_a_preemption_ends_with_the_next_step_that_is_planned_with_the_request(self):
        step = lambda planned, begin, batch: {"ph": "X", "ts": begin, "args": {"planned_us": planned, "batch": batch}}
        events = [
            step(0, 1, "7:5@0 8:1@9 "),
            {"ph": "i", "name": "preempted 7", "ts": 3.0},
            step(2, 3.0, "7:1@5 "),
            step(4, 5, "8:1@10 "),
            step(8, 9, "7:5@0 "),
            {"ph": "i", "name": "swapped in 7", "ts": 8},
        ]
        self.assertEqual(lives._of_trace(events), {7: [("preempted", 3000, 9000)]})

    def test_transfers_and_groups_of_requests(self):
        synthetic.write_runs(self.folder, {"scheduler": ["a", "b"]}, num_requests=4)
        rows = pd.read_csv(self.folder / "requests.csv", dtype={"run": str}).set_index(["run", "request"])
        first = rows.loc[("0001", 2)]
        (self.folder / "transfers.csv").write_text(
            "run,request,from,to,tokens,bytes,calls,ready_ns,asked_ns,end_ns\n"
            f"0001,2,0,1,5,5,1,{first.first_token_ns},{first.first_token_ns},{first.first_token_ns + 2_000_000}\n"
        )
        (self.folder / "request_groups.csv").write_text(
            'run,request,client,class\n0001,0,9007199254740993,chat\n0001,2,,"co,de"\n0002,1,5,\n'
        )
        one, two = (run["lives"] for run in data_of([self.folder], MANY)["runs"])
        self.assertEqual(one["columns"]["transfer_us"], [0, 0, 2000, 0])
        self.assertEqual(one["columns"]["client"], ["9007199254740993", "", "", ""])
        self.assertEqual(one["columns"]["class"], ["chat", "", "co,de", ""])
        self.assertNotIn("class", two["columns"])
        self.assertNotIn("transfer_us", two["columns"])
        self.assert_whole(one, rows.loc["0001"])
        self.assertEqual(sum(b - a for _, a, b in one["segments"]["2"]), round(first.last_token_ns / 1000) - round(first.arrival_ns / 1000))

    def test_time_of_the_policy_is_taken_out_of_prefill_and_decode(self):
        synthetic.write_runs(self.folder, {"scheduler": ["a", "b"]}, num_requests=4)
        synthetic.add_policy_times(self.folder, {"0001": (0.25, 0.5)})
        rows = pd.read_csv(self.folder / "requests.csv", dtype={"run": str}).set_index(["run", "request"])
        first = rows.loc[("0001", 2)]
        (self.folder / "transfers.csv").write_text(
            "run,request,from,to,tokens,bytes,calls,ready_ns,asked_ns,end_ns\n"
            f"0001,2,0,1,5,5,1,{first.first_token_ns},{first.first_token_ns},{first.first_token_ns + 2_000_000}\n"
        )
        one, two = (run["lives"] for run in data_of([self.folder], MANY)["runs"])
        self.assertEqual((one["has_policy_times"], two["has_policy_times"]), (True, False))
        self.assertNotIn("policy_us", two["columns"])
        self.assert_whole(one, rows.loc["0001"])
        self.assert_whole(two, rows.loc["0002"])
        own, columns = rows.loc["0001"], one["columns"]
        taken = (own["prefill_policy_ns"] // 1000 + own["decode_policy_ns"] // 1000).astype(int).tolist()
        self.assertEqual(columns["policy_us"], taken)
        prefill = np.round(own["first_token_ns"] / 1000) - np.round(own["scheduled_ns"] / 1000) - own["prefill_policy_ns"] // 1000
        self.assertEqual(columns["prefill_us"], prefill.astype(int).tolist())
        self.assertEqual(columns["transfer_us"], [0, 0, 2000, 0])

    def test_time_of_the_policy_is_no_longer_than_its_phase(self):
        synthetic.write_runs(self.folder, {"scheduler": ["a"]}, num_requests=4)
        synthetic.add_policy_times(self.folder, {"0001": (1.0, 1.0)})
        rows = pd.read_csv(self.folder / "requests.csv", dtype={"run": str}).set_index(["run", "request"])
        (one,) = (run["lives"] for run in data_of([self.folder], MANY)["runs"])
        self.assert_whole(one, rows.loc["0001"])
        self.assertTrue(all(0 <= us <= 1 for us in one["columns"].get("prefill_us", [0])))

    def test_requests_to_show_are_the_same_in_every_run_with_the_slowest(self):
        tables = [pd.DataFrame({"request": range(1000), "arrival_ns": 0, "last_token_ns": 10}) for _ in range(2)]
        tables[1].loc[7, "last_token_ns"] = 99
        self.assertIsNone(lives.chosen_requests(tables, 2000))
        chosen = lives.chosen_requests(tables, 200)
        self.assertEqual(len(chosen), 100)
        self.assertIn(7, chosen)
        self.assertEqual(lives.chosen_requests(tables, 0), set())


@unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is not built")
class OfTheProgram(ReportTest):
    """Results of the program itself: preemptions with a Perfetto trace, clients, and transfers between pools."""

    EXPERIMENT = """model: llama-3.1-8b
hardware: h100
scheduler: [vllm_v1, vllm_v0]
memory: {num_blocks: 130}
max_model_len: 1024
slo: {ttft_ms: 200, tpot_ms: 30}
trace:
  perfetto: true
  generate:
    requests: 40
    clients: {num: 2}
    arrival: {poisson: {rate_per_s: 40}}
    prompt_tokens: 300
    output_tokens: {uniform: {min: 100, max: 300}}
"""

    def run_program(self, more=""):
        (self.top / "e.yaml").write_text(self.EXPERIMENT + more)
        subprocess.run([PROGRAM, "run", "e.yaml", "--out", self.folder], cwd=self.top, check=True, capture_output=True)
        return pd.read_csv(self.folder / "requests.csv", dtype={"run": str}).set_index(["run", "request"])

    def test_lives_of_preempted_requests_by_client(self):
        rows = self.run_program()
        for run in data_of([self.folder], MANY)["runs"]:
            own = rows.loc[run["id"]].sort_index()
            self.assert_whole(run["lives"], own)
            self.assertTrue(run["lives"]["has_preempted_times"])
            lost = np.array(run["lives"]["columns"]["preempted_us"]) > 0
            self.assertGreater(lost.sum(), 3)
            np.testing.assert_array_equal(lost, own["preemptions"] > 0)
            self.assertEqual(set(run["lives"]["columns"]["client"]), {"0", "1"})

    def test_policy_preemptions_and_the_rest_add_up(self):
        """No phase is cut short: the policy's work is in none of the times of preemptions."""
        rows = self.run_program("kv_policy: {recipe: quest, budget_tokens: 128}\n")
        for run in data_of([self.folder], MANY)["runs"]:
            own, columns = rows.loc[run["id"]].sort_index(), run["lives"]["columns"]
            self.assertTrue(run["lives"]["has_policy_times"])
            self.assert_whole(run["lives"], own)
            self.assertGreater(sum(columns["preempted_us"]), 0)
            self.assertEqual(columns["prefill_policy_us"], (own["prefill_policy_ns"] // 1000).tolist())
            self.assertEqual(columns["decode_policy_us"], (own["decode_policy_ns"] // 1000).tolist())
            self.assertGreater(min(columns["policy_us"]), 0)


if __name__ == "__main__":
    unittest.main()
