"""Tests of what policies in Python may not do: python3 tests/python/test_policy_errors.py, with an interpreter that has the package."""

import unittest
from pathlib import Path

from policy_case import MISSING, Policies, serving

if not MISSING:
    import numpy as np

    import kvlab


def line_of(text):
    """Line of this file that has the text, from 1."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line and "line_of(" not in line)


class Errors(Policies):
    def assert_fails(self, message, experiment, **options):
        with self.assertRaises(kvlab.InputError) as caught:
            self.run_quietly(experiment, **options)
        self.assertIn(message, str(caught.exception))

    def test_an_exception_names_the_line_of_the_policy(self):
        @kvlab.order("divides")
        def divides(request, now):
            return 1 / (request.number - 3)  # fails

        place = f"{__file__}:{line_of('1 / (request.number - 3)  # fails')}"
        self.assert_fails(f"{place}: order 'divides': ZeroDivisionError: division by zero", serving(order="divides"))

        @kvlab.order("calls_numpy")
        def calls_numpy(request, now):
            return np.array([1, 2]) @ np.array([1, 2, 3])  # in numpy

        self.assert_fails(f"{__file__}:{line_of('np.array([1, 2, 3])  # in numpy')}: order 'calls_numpy': ValueError", serving(order="calls_numpy"))

    def test_the_complete_runs_of_a_sweep_are_kept(self):
        @kvlab.dispatcher("no_replica")
        def no_replica(request, replicas):
            return 7

        with self.assertRaises(kvlab.InputError) as caught:
            self.run_quietly(serving(replicas=2, dispatcher=["round_robin", "no_replica"]))
        self.assertIn("route() returned replica 7, which is none of those", str(caught.exception))
        self.assertEqual(len(caught.exception.results.summary), 1)

    def test_values_that_are_no_keys(self):
        @kvlab.order("returns_none")
        def returns_none(request):
            pass

        @kvlab.order("returns_nan")
        def returns_nan(request):
            return float("nan")

        @kvlab.order("returns_an_id")
        def returns_an_id(request):
            return 2**53 + 1 + 2 * request.number

        self.assert_fails("key() returned 9007199254740993, which no float holds", serving(order="returns_an_id"))
        self.assert_fails("key() must return a number, and returned None", serving(order="returns_none"))
        self.assert_fails("key() returned NaN", serving(order="returns_nan"))

    def test_requests_are_lent(self):
        @kvlab.order("keeps_requests")
        class KeepsRequests:
            def __init__(self):
                self.kept = []

            def key(self, request, now):
                self.kept.append(request)
                return self.kept[0].prompt_tokens

        self.assert_fails("a request is valid only during the call that it was passed to", serving(order="keeps_requests"))

        @kvlab.order("looks_ahead")
        def looks_ahead(request):
            return request.output_tokens

        self.assert_fails("'output_tokens' changes while a request is served", serving(order="looks_ahead"))

    def test_what_a_scorer_may_not_do(self):
        def fails(message, **options):
            def with_function(function):
                kvlab.scorer(function.__name__, needs=["keys"], **options)(function)
                samples = kvlab.data_path("traces/samples/probe_niah.safetensors")
                with self.assertRaises(kvlab.InputError) as caught:
                    kvlab.replay(samples=samples, policies=[{"recipe": "knorm", "scorer": function.__name__}], out=function.__name__, quiet=True)
                self.assertIn(message, str(caught.exception))

            return with_function

        kept = []

        @fails("keeps an array after the call")
        def keeps_a_view(keys):
            kept.append(keys[1:])
            return keys[:, 0]

        @fails("assignment destination is read-only")
        def writes(keys):
            keys[0] = 0
            return keys[:, 0]

        @fails("real numbers, one for each token, and returned ndarray of float32 with shape (")
        def returns_a_matrix(keys):
            return keys

        @fails("real numbers, one for each token, and returned NoneType")
        def returns_nothing(keys):
            pass

        @fails("score() returned NaN for token 2 of the row")
        def scores_nan(keys):
            return np.where(np.arange(len(keys)) == 2, np.nan, 1)

        @fails("cost=\"accumulated_attention\" cannot be charged: it keeps statistics", cost="accumulated_attention")
        def bad_cost(keys):
            return keys[:, 0]

        @fails("cost=\"key_nrom\" is not a scorer; did you mean 'key_norm'", cost="key_nrom")
        def unknown_cost(keys):
            return keys[:, 0]

    def test_a_scorer_without_a_cost_is_refused_in_the_simulator(self):
        @kvlab.scorer("no_cost")
        def no_cost(positions):
            return positions

        policy = {"recipe": "snapkv", "scorer": "no_cost", "budget_tokens": 128}
        self.assert_fails("a scorer in Python has no measured cost, so it runs in replay alone", serving(kv_policy=policy, memory={"num_blocks": 3000}))

    def test_plans_are_checked(self):
        def fails(message):
            def with_plan(plan):
                kvlab.scheduler(plan.__name__)(type(plan.__name__, (), {"plan": plan}))
                self.assert_fails(f"scheduler '{plan.__name__}': {message}", serving(scheduler=plan.__name__), out=plan.__name__)

            return with_plan

        @fails("ValueError: add: request 0 does not run")
        def adds_waiting(self, view, plan):
            plan.add(view.waiting(0), 1)

        @fails("ValueError: admit: request 0 has no room")
        def admits_without_room(self, view, plan):
            view.admit(view.waiting(0))

        @fails("IndexError: 1 requests wait")
        def waits_too_far(self, view, plan):
            view.waiting(1)

        @fails("ValueError: 100000 tokens of request 0, which needs ")
        def takes_too_many(self, view, plan):
            view.try_allocate(view.waiting(0), 100000)

        @fails("ValueError: add: 1 tokens of request 0, which has room for 0 in this plan")
        def adds_twice(self, view, plan):
            r = view.waiting(0)
            view.try_allocate(r, view.needed_tokens(r))
            view.admit(r)
            plan.add(r, view.needed_tokens(r))
            plan.add(r, 1)

        @fails("ValueError: reject: request 0 was rejected in this plan")
        def rejects_twice(self, view, plan):
            r = view.waiting(0)
            view.reject(r, "once")
            view.reject(r, "again")

        @fails("ValueError: admit: request 0 was rejected in this plan")
        def admits_a_rejected_request(self, view, plan):
            r = view.waiting(0)
            view.try_allocate(r, view.needed_tokens(r))
            view.reject(r, "once")
            view.admit(r)

        views = []

        @fails("RuntimeError: the view is valid only during the call")
        def keeps_the_view(self, view, plan):
            views.append(view)
            r = views[0].waiting(0)
            if view.try_allocate(r, view.needed_tokens(r)):
                view.admit(r)
                plan.add(r, view.needed_tokens(r))

    def test_victims_must_be_candidates(self):
        @kvlab.block_cache("gives_0")
        class Gives0:
            def on_acquire(self, block):
                pass

            def on_release(self, block):
                pass

            def victim(self):
                return 0

        trace = {"file": kvlab.data_path("traces/samples/mooncake_like.jsonl.gz"), "limit_requests": 5}
        curves = {"name": "curves", "kind": "block_cache_mrc", "block_caches": "gives_0", "capacity_blocks": 50, "trace": trace}
        self.assert_fails("victim() returned block 0, which is no candidate", curves)

    def test_parameters_have_the_checks_of_yaml(self):
        @kvlab.order("has_parameters")
        def has_parameters(request, *, slope: float, window=kvlab.param(4, min=1, max=9, meaning="requests"), is_on=True, mode="x"):
            self.assertEqual((slope, window, is_on, mode), (0.5, 4, False, "y"))
            return slope * request.prompt_tokens

        self.run_quietly(serving(order={"has_parameters": {"slope": 0.5, "is_on": False, "mode": "y"}}))
        rows = {p["key"]: (p["type"], p["default"], p["meaning"]) for p in kvlab.describe("has_parameters")["parameters"]}
        self.assertEqual(rows["window"], ("integer", "4", "requests"))
        self.assertEqual(rows["slope"][:2], ("real", None))
        for given, message in {
            "{slope: 1, windw: 2}": "unknown key 'windw' in order 'has_parameters'",
            "{slope: 1, window: 10}": "[1, 9]",
            "{slope: x}": "not a number: 'x'",
            "{}": "'slope'",
        }.items():
            Path("x.yaml").write_text(f"name: x\nmodel: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\norder: {{has_parameters: {given}}}\ntrace: {{file: none.csv}}\n")
            with self.assertRaises(kvlab.InputError) as caught:
                self.run_quietly("x.yaml")
            self.assertRegex(str(caught.exception), r"x\.yaml:5:\d+: ")
            self.assertIn(message, str(caught.exception))


class Declarations(Policies):
    def test_ranges_hold_for_each_name_of_a_function_and_for_subclasses(self):
        def ranged(request, *, window=kvlab.param(4, min=1, max=9, meaning="requests")):
            return window * request.prompt_tokens

        class Base:
            def __init__(self, *, window=kvlab.param(4, min=1, max=9, meaning="requests")):
                self.window = window

            def key(self, request):
                return self.window * request.prompt_tokens

        for target in (ranged, Base, type("Derived", (Base,), {})):
            name = f"ranged_{target.__name__}"
            kvlab.order(name)(target)
            kvlab.order(f"{name}_again")(target)
            for each in (name, f"{name}_again"):
                (row,) = kvlab.describe(each)["parameters"]
                self.assertEqual((row["key"], row["default"], row["range"], row["meaning"]), ("window", "4", "[1, 9]", "requests"))
        self.assertEqual(Base().window, 4)

    def test_mistakes_are_told_when_a_policy_is_declared(self):
        def fails(error, message, decorator):
            def with_target(target):
                with self.assertRaises(error) as caught:
                    decorator(target)
                self.assertIn(message, str(caught.exception))

            return with_target

        @fails(TypeError, "key() cannot take 'reqest'; it takes any of request, now; did you mean 'request'?", kvlab.order("bad"))
        def misspelt(reqest):
            pass

        @fails(TypeError, "on_token() is never called", kvlab.order("bad"))
        class BadEvent:
            def key(self, request):
                pass

            def on_token(self, request):
                pass

        @fails(TypeError, "parameters of YAML are keyword-only: write __init__(self, *, slope)", kvlab.order("bad"))
        class PositionalParameter:
            def __init__(self, slope):
                pass

            def key(self, request):
                pass

        @fails(TypeError, "an order needs key()", kvlab.order("bad"))
        class NoKey:
            pass

        @fails(ValueError, "'fcfs' is the name of a built-in policy", kvlab.order("fcfs"))
        def takes_a_name(request):
            pass

        @kvlab.order("taken")
        def taken(request):
            return 1

        @fails(ValueError, "'taken' is an order in Python already", kvlab.dispatcher("taken"))
        def takes_another_name(request, replicas):
            pass

        @fails(TypeError, "score() takes 'keys', so write needs=['keys']", kvlab.scorer("bad"))
        def undeclared(keys):
            pass

        @fails(TypeError, "a block cache has rank(block) or victim(incoming), and not both", kvlab.block_cache("bad"))
        class Neither:
            pass

        @fails(TypeError, "a scheduler is a class", kvlab.scheduler("bad"))
        def plan(view, plan):
            pass

        with self.assertRaisesRegex(ValueError, "needs: unknown 'prio'"):
            kvlab.order("bad", needs=["prio"])
        self.assertNotIn("bad", set(kvlab.list("orders")["name"]))

    def test_they_are_listed_as_soon_as_they_are_declared(self):
        kvlab.list("kv")

        @kvlab.scorer("listed_scorer")
        def listed_scorer(positions):
            """newest first"""
            return positions

        @kvlab.block_cache("listed_cache")
        class ListedCache:
            def rank(self, block):
                return block

        self.assertIn("listed_scorer", set(kvlab.list("kv")["name"]))
        self.assertIn("listed_cache", set(kvlab.list("block_caches")["name"]))
        described = kvlab.describe("listed_scorer")
        self.assertEqual(described["summary"], "newest first")
        self.assertIn("test_policy_errors.py:", described["source"])

    def test_none_is_added_while_a_run_is_in_progress(self):
        @kvlab.order("adds_a_policy")
        def adds_a_policy(request):
            kvlab.order("within")(lambda request: 1)

        with self.assertRaisesRegex(kvlab.InputError, "a policy cannot be added while a run is in progress"):
            self.run_quietly(serving(order="adds_a_policy"))


if __name__ == "__main__":
    unittest.main()
