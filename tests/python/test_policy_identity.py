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
    from kvlab.policy_text import text_of


class Texts(Policies):
    """The text of a policy follows every file and value of the user's own that the policy uses."""

    FILES = {
        "deep.py": "FACTOR = 2\n",
        "middle.py": "import deep\nfrom other import weight\n",
        "other.py": "def weight(n):\n    return n + 1\n",
        "uses.py": """\
            import functools
            import middle
            import numpy as np

            SCALE = 3

            def scaled(by):
                def decorate(function):
                    @functools.wraps(function)
                    def inner(request):
                        return by * function(request) + 0
                    return inner
                return decorate

            @functools.lru_cache(maxsize=None)
            def cached(n):
                return n + 10

            def max(n, least=SCALE):
                return n + 20

            TABLE = {"a": lambda n: n + 30}

            class Base:
                step = SCALE + 1

                def key(self, request):
                    return self.step

            @scaled(2)
            def wrapped(request):
                return request.prompt_tokens

            def plain(request):
                return np.int64(cached(max(TABLE["a"](middle.weight(request.prompt_tokens)))))

            class Derived(Base):
                pass
            """,
    }
    CHANGES = {
        "wrapped": [("uses.py", "* function(request) + 0", "* function(request) + 1"), ("uses.py", "@scaled(2)", "@scaled(5)")],
        "plain": [
            *(("uses.py", f"return n + {n}", f"return n + {n + 1}") for n in (10, 20)),
            *(("uses.py", "n: n + 30", "n: n + 31"), ("uses.py", "SCALE = 3", "SCALE = 4")),
            *(("other.py", "n + 1", "n + 2"), ("deep.py", "= 2", "= 5")),
        ],
        "Derived": [("uses.py", "SCALE = 3", "SCALE = 4")],
    }

    def texts(self, change=None):
        """The texts of the policies in a process of its own, with one change to the files."""
        for name, text in self.FILES.items():
            text = textwrap.dedent(text)
            if change and change[0] == name:
                self.assertEqual(text.count(change[1]), 1, change)
                text = text.replace(*change[1:])
            Path(name).write_text(text)
        program = "import sys; sys.path.insert(0, '.'); import uses, kvlab.policy_text as t; print(*(repr(t.text_of(getattr(uses, n))) for n in sys.argv[1:]), sep='\\n')"
        done = subprocess.run([sys.executable, "-B", "-c", program, *self.CHANGES], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return dict(zip(self.CHANGES, done.stdout.splitlines()))

    def test_they_change_with_what_a_policy_uses(self):
        first = self.texts()
        self.assertEqual(first, self.texts())
        for policy, changes in self.CHANGES.items():
            for change in changes:
                with self.subTest(policy=policy, change=change):
                    self.assertNotEqual(first[policy], self.texts(change)[policy])

    def test_libraries_count_by_their_versions(self):
        import numpy as np

        def uses_numpy(request):
            return np.int64(request.number)

        text = text_of(uses_numpy)
        self.assertIn(f"numpy {np.__version__}", text)
        self.assertLess(len(text), 1000)


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
