"""Tests of bench/instructions.py: the callgrind reader and the limit. Needs neither valgrind nor a build."""

import importlib.util
import io
import pathlib
import unittest

_FILE = pathlib.Path(__file__).resolve().parents[2] / "bench" / "instructions.py"
_SPEC = importlib.util.spec_from_file_location("instructions", _FILE)
instructions = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(instructions)

# Two functions of the program, one of a library; `plan` calls `take` (inclusive cost 40) and `memcpy` (100), neither of which is its own.
CALLGRIND = """version: 1
events: Ir
ob=(1) /build/kvlab
fl=(1) a.cpp
fn=(1) kvlab::plan()
10 5
+2 7
cfi=(2) b.cpp
cfn=(2) kvlab::take()
calls=3 20
* 40
cob=(2) /lib/libc.so
cfn=(3) memcpy
calls=1 0
14 100

fn=(2)
20 40

ob=(2)
fn=(3)
0 100

totals: 152
"""


def job(total, **functions):
    return {"instructions": total, "functions": functions}


class ReadsCallgrind(unittest.TestCase):
    def test_counts_what_a_function_of_the_program_spends_alone(self):
        costs = instructions.exclusive_costs(io.StringIO(CALLGRIND), "/build/kvlab")
        self.assertEqual(dict(costs), {"kvlab::plan()": 12, "kvlab::take()": 40})


class Compares(unittest.TestCase):
    def compare(self, before, after):
        out = io.StringIO()
        return instructions.compare({"azure": before}, {"azure": after}, out), out.getvalue()

    def test_accepts_growth_up_to_the_limit(self):
        self.assertEqual(self.compare(job(1000, plan=600), job(1030, plan=630))[0], 0)

    def test_refuses_growth_above_the_limit_and_names_what_grew(self):
        status, text = self.compare(job(1000, plan=600, take=400), job(1040, plan=600, take=440))
        self.assertEqual(status, 1)
        self.assertIn("+4.00 %  above the limit", text)
        self.assertIn("+40  take", text)
        self.assertNotIn("plan", text)

    def test_accepts_any_gain(self):
        self.assertEqual(self.compare(job(1000), job(100))[0], 0)

    def test_refuses_a_job_without_a_record(self):
        out = io.StringIO()
        self.assertEqual(instructions.compare({}, {"azure": job(1)}, out), 1)
        self.assertIn("--update", out.getvalue())

    def test_a_job_above_its_ceiling_needs_a_reason(self):
        more, less = {"azure": job(101)}, {"azure": job(99), "new": job(5)}
        self.assertEqual(instructions.above_ceiling({"azure": job(100)}, less, {}), [])
        self.assertIn("azure: 100 -> 101", instructions.above_ceiling({"azure": job(100)}, more, {})[0])
        self.assertEqual(instructions.above_ceiling({"azure": job(100)}, more, {"azure": "counts retries"}), [])


if __name__ == "__main__":
    unittest.main()
