"""Tests that a changed policy in Python is run anew: python3 tests/python/test_policy_identity.py, with an interpreter that has the package."""

import os
import re
import subprocess
import sys
import textwrap
import unittest
from pathlib import Path

from policy_case import MISSING, Policies, serving

if not MISSING:
    import kvlab


class Identity(Policies):
    MODULE = """\
        import kvlab
        from helper import weight

        @kvlab.order("identified")
        def identified(request, *, slope=1.0):
            return slope * weight(request.prompt_tokens)

        @kvlab.order("other")
        def other(request):
            return 1
        """

    def runs_done(self):
        """The runs that a process of its own does, by its messages."""
        text = "import sys; sys.path.insert(0, '.'); import policies, kvlab._call as c; print(c.call('run', 'x.yaml', '--jobs', '1'))"
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        changed = re.findall(r"(\d+) runs? (?:is|are) done again, since (.*) changed", done.stdout)
        return changed, len(re.findall(r"^run \d+ of", done.stdout, re.MULTILINE))

    def test_a_changed_policy_is_run_anew_and_no_other(self):
        trace = "{generate: {requests: 20, arrival: {poisson: {rate_per_s: 9}}, prompt_tokens: {fixed: {value: 50}}, output_tokens: {fixed: {value: 5}}}}"
        Path("x.yaml").write_text(f"name: x\nmodel: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\norder: [fcfs, identified, other]\ntrace: {trace}\n")
        policies, helper = Path("policies.py"), Path("helper.py")
        policies.write_text(textwrap.dedent(self.MODULE))
        helper.write_text("SCALE = 1\n\ndef weight(tokens):\n    return SCALE * tokens\n")
        self.assertEqual(self.runs_done(), ([], 3))
        self.assertEqual(self.runs_done(), ([], 0))
        policies.write_text("# moved down\n\n" + policies.read_text())
        self.assertEqual(self.runs_done(), ([], 0))
        policies.write_text(policies.read_text().replace("return slope *", "return 2 * slope *"))
        self.assertEqual(self.runs_done(), ([("1", "python:identified")], 1))
        helper.write_text(helper.read_text().replace("SCALE = 1", "SCALE = -1"))  # used by a function that the policy uses
        self.assertEqual(self.runs_done(), ([("1", "python:identified")], 1))
        policies.write_text(policies.read_text().replace("slope=1.0", "slope=0.5"))
        self.assertEqual(self.runs_done(), ([("1", "python:identified")], 1))
        self.assertEqual(self.runs_done(), ([], 0))

    def test_a_policy_without_a_source_file_counts_by_its_byte_code(self):
        def decorate(text):
            exec(text, {"kvlab": kvlab})

        experiment = serving(order="typed")
        decorate("@kvlab.order('typed')\ndef typed(request):\n    return request.prompt_tokens\n")
        first = self.run_quietly(experiment)
        manifest = first.run(first.summary["run"][0]).manifest
        self.assertRegex(manifest["code"]["python:typed"], "^[0-9a-f]{16}$")
        before = self.files_of(first, "requests.csv")
        decorate("@kvlab.order('typed')\ndef typed(request):\n    return -request.prompt_tokens\n")
        second = self.run_quietly(experiment)
        self.assertNotEqual(before, self.files_of(second, "requests.csv"))

    def test_fidelity_in_a_serving_table_follows_the_scorer(self):
        """It is kept from one run of a process to the next."""

        def mass(sign):
            exec(f"@kvlab.scorer('signed', needs=['keys'], cost='key_norm')\ndef signed(keys):\n    return {sign} * (keys * keys).sum(axis=1)\n", {"kvlab": kvlab})
            samples = {"probe": {"file": kvlab.data_path("traces/samples/probe_niah.safetensors")}}
            policy = {"recipe": "knorm", "scorer": "signed", "budget_tokens": 64}
            return self.run_quietly(serving(memory={"num_blocks": 3000}, kv_policy=policy, samples=samples)).summary["attention_mass"][0]

        self.assertNotEqual(mass(-1), mass(1))


if __name__ == "__main__":
    unittest.main()
