"""The page of ./kvlab report in headless Chromium: it filters, sorts, switches runs and compares, and the console says nothing.
Run: python3 tests/plots/test_report_in_browser.py"""

import html
import json
import re
import shutil
import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "python" / "kvlab" / "report"), str(HERE.parents[1] / "plots"), str(HERE)]

import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import report  # noqa: E402
import synthetic  # noqa: E402
from report_case import RATE, ReportTest  # noqa: E402


def chromium():
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def missing():
    """The remedy where there is no browser; "" where there is one."""
    return "" if chromium() else "no chromium: apt-get install chromium"


# Uses the page as a reader does, and writes down what it shows.
PROBE = """{
const told = {};
const rows = (id) => document.querySelectorAll(`#${id} tbody tr`).length;
const cells = (id, name) => {
  const column = [...document.querySelectorAll(`#${id} th`)].findIndex((cell) => cell.textContent === name);
  return [...document.querySelectorAll(`#${id} tbody tr`)].map((row) => row.children[column]);
};
const put = (id, value, event) => { const at = document.getElementById(id); at.value = value; at.dispatchEvent(new Event(event)); };
const head = (id, name) => [...document.querySelectorAll(`#${id} th`)].find((cell) => cell.textContent === name);
told.sections = [...document.querySelectorAll("section")].map((each) => each.id);
told.failed = document.getElementById("failed-0").textContent;
told.rows = rows("summary-0");
put("summary-0-filter", "VLLM 4", "input");
told.filtered = cells("summary-0", "rate_per_s").map((cell) => cell.textContent);
put("summary-0-filter", "", "input");
head("summary-0", "ttft_p99_ms").click();
told.order = cells("summary-0", "ttft_p99_ms").map((cell) => Number(cell.title));
document.getElementById("summary-0-all").click();
told.columns = document.querySelectorAll("#summary-0 th").length;
told.timeline = document.getElementById("timeline-plot").data[0].name;
put("timeline-run", "1", "change");
put("timeline-with", "0", "change");
told.timelines = document.getElementById("timeline-plot").data.filter((trace) => trace.showlegend).map((trace) => trace.name);
put("select-comparison", "1", "change");
told.bars = document.getElementById("figure-comparison").data[0].x.length;
told.lines = document.querySelectorAll("#figure-cdf_ttft .scatterlayer path.js-line").length;
told.requests = rows("request-table");
told.opens = cells("request-table", "E2E").map((cell) => parseFloat(cell.textContent.replaceAll(",", "")));
put("request-client", "b", "change");
told.client = rows("request-table");
put("request-kind", "misses", "change");
told.slow = cells("request-table", "TTFT").map((cell) => parseFloat(cell.textContent));
put("request-client", "", "change");
put("request-kind", "all", "change");
told.other = document.getElementById("compare-b").value;
put("compare-a", "0", "change");
put("compare-b", "2", "change");
head("request-table", "request").click();
head("request-table", "request").click();
document.querySelectorAll("#request-table tbody tr")[3].click();
told.number = document.getElementById("compare-request").value;
told.verdict = document.querySelector("#compare-pair .verdict").textContent;
told.blame = [...document.querySelectorAll("#blame tbody tr")].map((row) => [...row.children].map((cell) => cell.textContent));
told.policy = document.getElementById("compare-lives").data.find((trace) => trace.name === "policy").text;
told.lives = document.getElementById("compare-lives").data.map((trace) => trace.name);
told.provenance = document.getElementById("provenance-0").textContent;
document.body.append(Object.assign(document.createElement("pre"), { id: "told", textContent: JSON.stringify(told) }));
}"""


@unittest.skipIf(missing(), missing())
class InABrowser(ReportTest):
    def open(self, path):
        """The page after the probe, and what the console said."""
        (self.top / "probed.html").write_text(path.read_text().replace("</body>", f"<script>{PROBE}</script></body>"))
        command = [
            chromium(),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            f"--user-data-dir={self.top / 'profile'}",
            "--window-size=1400,1000",
            "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr",
            "--virtual-time-budget=20000",
            "--dump-dom",
            f"file://{self.top / 'probed.html'}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        told = re.search(r'<pre id="told">(.*?)</pre>', done.stdout, re.DOTALL)
        console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        self.assertIsNotNone(told, "\n".join(console) or done.stderr[-2000:])
        return json.loads(html.unescape(told[1])), console

    def test_it_filters_sorts_switches_runs_and_compares(self):
        synthetic.write_runs(self.folder, {"scheduler": ["vllm_v1", "sarathi"], RATE: [2.0, 4.0]}, num_requests=30)
        synthetic.add_policy_times(self.folder, {"0001": (0.1, 0.0), "0003": (0.2, 0.6)})
        (self.folder / "resolved.yaml").write_text("slo: {ttft_ms: 60}\n")
        runs = [{"run": f"{i:04}", "state": "done", "cost_source": "profile x"} for i in range(1, 5)] + [
            {"run": "0005", "state": "failed", "axes": {"scheduler": "<b>"}, "error": "does not fit"}
        ]
        (self.folder / "manifest.json").write_text(json.dumps({"name": "made_up", "file": "e.yaml", "program": "kvlab 1", "runs": runs}))
        groups = [f"{run:04},{request},{'ab'[request % 2]}," for run in range(1, 5) for request in range(30)]
        (self.folder / "request_groups.csv").write_text("run,request,client,class\n" + "\n".join(groups) + "\n")
        path, _ = report.write([self.folder])
        told, console = self.open(path)
        self.assertEqual(console, [])
        self.assertEqual(told["sections"], ["credibility", "summary", "figures", "timeline", "requests", "compare", "provenance"])
        self.assertIn("1 of 5 runs have no result", told["failed"])
        self.assertIn("scheduler=<b>faileddoes not fit", told["failed"])
        rows = pd.read_csv(self.folder / "summary.csv", dtype={"run": str})
        self.assertEqual((told["rows"], told["filtered"]), (4, ["4"]))
        np.testing.assert_allclose(told["order"], rows["ttft_p99_ms"].sort_values(ascending=False))
        self.assertEqual(told["columns"], len(rows.columns))
        self.assertEqual(
            (told["timeline"], told["timelines"]), ("vLLM V1, 2 req/s", ["vLLM V1, 4 req/s", "vLLM V1, 2 req/s"])
        )
        self.assertEqual((told["bars"], told["lines"], told["requests"], told["client"]), (4, 4, 30, 15))
        self.assertEqual(told["opens"], sorted(told["opens"], reverse=True))
        self.check_requests(told)
        self.assertIn("./kvlab run e.yaml", told["provenance"])

    def check_requests(self, told):
        requests = pd.read_csv(self.folder / "requests.csv", dtype={"run": str}).set_index(["run", "request"])
        one, other = requests.loc[("0001", 3)], requests.loc[("0003", 3)]
        ttft = (requests.loc["0001"]["first_token_ns"] - requests.loc["0001"]["arrival_ns"]) / 1e6
        self.assertEqual(len(told["slow"]), int(((ttft > 60) & (ttft.index % 2 == 1)).sum()))
        self.assertTrue(told["slow"] and min(told["slow"]) > 60)
        self.assertEqual((told["number"], told["other"]), ("3", "1"))
        by = {
            "queued": lambda r: r.scheduled_ns - r.arrival_ns,
            "prefill": lambda r: r.first_token_ns - r.scheduled_ns - r.prefill_policy_ns,
            "decode": lambda r: r.last_token_ns - r.first_token_ns - r.decode_policy_ns,
            "policy": lambda r: r.prefill_policy_ns + r.decode_policy_ns,
        }
        largest = max(by, key=lambda phase: abs(by[phase](other) - by[phase](one)))
        self.assertEqual(told["blame"][0][0], largest)
        self.assertRegex(told["verdict"], r"^Request 3: [\d,.]+ m?s (longer|shorter) in B")
        self.assertEqual({row[0] for row in told["blame"]}, set(by))
        self.assertEqual(sorted(told["lives"]), ["decode", "policy", "prefill", "queued"])
        self.assertEqual([text.split(" of ")[1] for text in told["policy"]], ["prefill", "prefill", "decode"])


if __name__ == "__main__":
    unittest.main()
