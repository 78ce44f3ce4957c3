"""Policies written in Python: the decorators order, scorer, scheduler, block_cache and dispatcher (docs/python-policies.md)."""

from __future__ import annotations

import atexit
import difflib
import functools
import inspect
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kvlab import _kvlab
from kvlab.policy_text import text_of

_LIMIT = 1e18  # numbers without a range of their own
_FACTS = ("client", "class", "priority", "ttft_slo_ms", "tpot_slo_ms", "tbt_slo_ms", "predicted_output", "program", "turn", "images")
_TENSORS = ("keys", "values", "queries")

# Methods by kind, with the arguments that each may take, by place (python/bindings/policies/). The first one is a function's own.
_METHODS = {
    "order": {
        "key": ("request", "now"),
        "on_arrival": ("request", "now"),
        "on_admit": ("request", "now"),
        "on_tokens": ("request", "now", "count"),
        "on_leave": ("request", "now"),
        "on_plan": ("", "now"),
    },
    "scorer": {"score": ("keys", "values", "positions", "queries", "layer", "head", "prompt_tokens", "seen_tokens")},
    "scheduler": {"plan": ("view", "plan")},
    "block cache": {
        "rank": ("block",),
        "victim": ("incoming",),
        "reset": ("num_blocks",),
        "on_insert": ("block", "key", "depth", "cost_s"),
        "on_hit": ("block",),
        "on_acquire": ("block",),
        "on_release": ("block",),
        "on_evict": ("block",),
    },
    "dispatcher": {"route": ("request", "replicas", "now", "stage"), "on_leave": ("request",)},
}


@dataclass(frozen=True)
class param:
    """The default of a parameter with its range and meaning: `rate=kvlab.param(2.0, min=0, meaning="requests per second")`."""

    default: Any
    min: float | None = None
    max: float | None = None
    meaning: str = ""


@dataclass(frozen=True)
class Declared:
    """A policy that was registered. facts: its declaration for the program, without the function that makes it."""

    target: Any
    facts: dict[str, Any]
    text: Callable[[], str]  # which its behaviour follows from, as of now
    code: bytes | None = None  # that it was loaded from, where another process sent it


declared: dict[str, Declared] = {}  # by name


def _a(kind: str) -> str:
    return f"{'an' if kind[0] == 'o' else 'a'} {kind}"


def _parameter(spec: inspect.Parameter, where: str) -> dict[str, Any]:
    """A keyword-only argument as the program reads it from YAML."""
    given = spec.default if isinstance(spec.default, param) else param(spec.default)
    required = given.default is inspect.Parameter.empty
    value = given.default
    if required:
        kinds = {"int": 0, "float": 0.0, "str": ""}
        value = kinds.get(getattr(spec.annotation, "__name__", spec.annotation))
        if value is None:
            raise TypeError(f"{where}: '{spec.name}' needs a default, or one of the annotations int, float, str")
    if not isinstance(value, (bool, int, float, str)):
        raise TypeError(f"{where}: the default of '{spec.name}' must be a number, a bool or a str, and is {value!r}")
    low, high = (-_LIMIT if given.min is None else given.min), (_LIMIT if given.max is None else given.max)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not required and not low <= value <= high:
        raise ValueError(f"{where}: the default of '{spec.name}' is outside [{low}, {high}]")
    meaning = given.meaning or "of the policy in Python"
    return {"key": spec.name, "value": value, "required": required, "min": float(low), "max": float(high), "meaning": meaning}


def _split(function: Callable[..., Any], where: str) -> tuple[list[str], list[inspect.Parameter]]:
    """The positional arguments of a function by name, and its keyword-only ones."""
    positional, keywords = [], []
    declared = getattr(function, "__kvlab_params__", {})
    for spec in inspect.signature(function).parameters.values():
        if spec.kind in (spec.VAR_POSITIONAL, spec.VAR_KEYWORD):
            raise TypeError(f"{where}: name each argument in place of '*{spec.name}'")
        if spec.kind == spec.KEYWORD_ONLY:
            keywords.append(spec.replace(default=declared.get(spec.name, spec.default)))
        else:
            positional.append(spec.name)
    return positional, keywords


def _places(kind: str, method: str, arguments: Sequence[str], where: str) -> list[int]:
    known = _METHODS[kind][method]
    for name in arguments:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            hint = f"; did you mean '{close[0]}'?" if close else ""
            raise TypeError(f"{where}: {method}() cannot take '{name}'; it takes any of {', '.join(k for k in known if k)}{hint}")
    return [known.index(name) for name in arguments]


def _with_defaults(make: Callable[..., Any]) -> None:
    """Called from Python without a parameter that is a param(), a function would see the param itself: its default takes the place. The param is
    kept for a second decorator, and for classes that inherit the function."""
    defaults = getattr(make, "__kwdefaults__", None) or {}
    params = {k: v for k, v in defaults.items() if isinstance(v, param)}
    if params:
        make.__kvlab_params__ = params  # type: ignore[attr-defined]
        make.__kwdefaults__ = {**defaults, **{k: v.default for k, v in params.items()}}


def _maker(kind: str, target: Any) -> Callable[..., Any]:
    """Makes the object of one run from the values of its parameters."""
    if inspect.isclass(target):
        return target
    method = next(iter(_METHODS[kind]))
    return lambda **values: SimpleNamespace(**{method: functools.partial(target, **values) if values else target})


def _of_function(kind: str, function: Callable[..., Any], where: str) -> dict[str, Any]:
    method = next(iter(_METHODS[kind]))
    arguments, keywords = _split(function, where)
    parameters = [_parameter(spec, where) for spec in keywords]
    _with_defaults(function)
    return {"parameters": parameters, "methods": {method: _places(kind, method, arguments, where)}}


def _of_class(kind: str, cls: type, where: str) -> dict[str, Any]:
    known = _METHODS[kind]
    methods = {}
    for name in dir(cls):
        if name in known:
            arguments, keywords = _split(getattr(cls, name), where)
            if keywords:
                raise TypeError(f"{where}: parameters are keyword-only arguments of __init__(), not of {name}()")
            is_static = isinstance(inspect.getattr_static(cls, name), staticmethod)
            methods[name] = _places(kind, name, arguments if is_static else arguments[1:], where)
        elif name.startswith("on_"):
            close = difflib.get_close_matches(name, known, 1)
            raise TypeError(f"{where}: {name}() is never called; {_a(kind)} has {', '.join(known)}" + (f"; did you mean '{close[0]}'?" if close else ""))
    parameters = []
    if cls.__init__ is not object.__init__:
        arguments, keywords = _split(cls.__init__, where)
        if len(arguments) > 1:
            raise TypeError(f"{where}: parameters of YAML are keyword-only: write __init__(self, *, {', '.join(arguments[1:])})")
        parameters = [_parameter(spec, where) for spec in keywords]
        _with_defaults(cls.__init__)
    return {"parameters": parameters, "methods": methods}


def _require_methods(kind: str, methods: dict[str, Any], where: str) -> None:
    if kind == "block cache":
        if ("rank" in methods) == ("victim" in methods):
            raise TypeError(f"{where}: a block cache has rank(block) or victim(incoming), and not both")
        if "victim" in methods and not {"on_acquire", "on_release"} <= methods.keys():
            raise TypeError(f"{where}: a block cache with victim() needs on_release(block) and on_acquire(block), which say what may be given up")
    elif next(iter(_METHODS[kind])) not in methods:
        raise TypeError(f"{where}: {_a(kind)} needs {next(iter(_METHODS[kind]))}()")


def _place_of(target: Any) -> tuple[str, int]:
    """File and line of a function or class, as tracebacks name them."""
    if inspect.isclass(target):
        found = next((vars(target)[n] for n in vars(target) if inspect.isfunction(vars(target)[n])), None)
        file = found.__code__.co_filename if found else (inspect.getsourcefile(target) or "?")
        try:
            return file, inspect.getsourcelines(target)[1]
        except (OSError, TypeError):
            return file, found.__code__.co_firstlineno if found else 0
    return target.__code__.co_filename, target.__code__.co_firstlineno


def _register(kind: str, name: str, target: Any, options: dict[str, Any]) -> Any:
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise TypeError(f"{_a(kind)} needs a name of letters, digits and '_', by which YAML knows it: @kvlab.{kind.replace(' ', '_')}(\"my_{kind.replace(' ', '_')}\")")
    earlier = declared[name].facts["kind"] if name in declared else kind
    if earlier != kind:
        raise ValueError(f"'{name}' is {_a(earlier)} in Python already: choose another name")
    file, line = _place_of(target)
    where = f"{file}:{line}: {kind} '{name}'"
    is_function = inspect.isfunction(target)
    if not is_function and not inspect.isclass(target):
        raise TypeError(f"{kind} '{name}' decorates a function or a class, and not {target!r}")
    if is_function and kind == "scheduler":
        raise TypeError(f"{where}: a scheduler is a class with plan(self, view, plan)")
    told = (_of_function if is_function else _of_class)(kind, target, where)
    _require_methods(kind, told["methods"], where)
    if kind == "scorer":
        _check_tensors(told["methods"]["score"], options, where)
    summary = (inspect.getdoc(target) or "in Python, without a docstring").splitlines()[0]
    source = f"Python, {os.path.relpath(file) if os.path.exists(file) else file}:{line}"
    options = {key: value for key, value in options.items() if key != "tensors"}
    settings = f"{kind} {name} {sorted(options.items())} {[sorted(p.items()) for p in told['parameters']]}\n"
    facts = {"kind": kind, "name": name, "summary": summary, "source": source, "file": file, "line": line, "options": options, **told}
    add(Declared(target, facts, lambda: settings + text_of(target)))
    return target


def add(policy: Declared, make: Callable[..., Any] | None = None) -> None:
    """Makes a policy known to the program, in place of an earlier one of its name. make: None: from its target."""
    _kvlab.add_policy({**policy.facts, "make": make or _maker(policy.facts["kind"], policy.target)})
    declared[policy.facts["name"]] = policy


def _check_tensors(places: Sequence[int], options: dict[str, Any], where: str) -> None:
    taken = {_METHODS["scorer"]["score"][place] for place in places}
    for name in taken & set(_TENSORS) - set(options["tensors"]):
        raise TypeError(f"{where}: score() takes '{name}', so write needs={sorted(taken & set(_TENSORS))}")
    for name in set(options["tensors"]) - taken:
        raise TypeError(f"{where}: needs has '{name}', which score() does not take")
    if ("queries" in taken) != (options["window_queries"] > 0):
        raise TypeError(f"{where}: score() takes 'queries' exactly where window_queries=N says how many of the prompt's last ones")


def _decorator(kind: str, name: str, **options: Any) -> Callable[[Any], Any]:
    return lambda target: _register(kind, name, target, options)


def _named(needs: Sequence[str], known: Sequence[str]) -> list[str]:
    if isinstance(needs, str):
        raise TypeError(f"needs is a list: needs=[\"{needs}\"]")
    for name in needs:
        if name not in known:
            raise ValueError(f"needs: unknown '{name}'; known: {', '.join(known)}")
    return list(needs)


def order(name: str, *, needs: Sequence[str] = ()) -> Callable[[Any], Any]:
    """An order: whose turn it is. Decorates a function key(request) or key(request, now), or a class with a method key().

    The smallest key goes first, of equal keys the earliest arrival. A key without `now` is asked once, when the request arrives; one with `now` in
    every plan. needs: columns that every request of the trace must have ("priority", "client", ...), and "predicted_tokens" for the output
    length that the experiment's predictor expects."""
    given = _named(needs, (*_FACTS, "predicted_tokens"))
    return _decorator("order", name, needs=[n for n in given if n != "predicted_tokens"], predicts="predicted_tokens" in given)


def scorer(
    name: str,
    *,
    needs: Sequence[str] = (),
    cost: str = "",
    protects: tuple[int, int] = (0, 0),
    window_queries: int = 0,
    compare_heads: bool = False,
) -> Callable[[Any], Any]:
    """A scorer of cached tokens: the larger score is kept. Decorates a function, or a class with a method score(), of one row: a KV head of a layer.

    needs: of "keys", "values", "queries", those that it takes. cost: the scorer whose operations the simulator charges; "": it runs in replay
    alone. protects: first and last tokens that always stay. window_queries: how many of the prompt's last queries it takes.
    compare_heads: scores of different heads may be ranked together."""
    sinks, recent = protects
    if not all(isinstance(n, int) and 0 <= n < 2**31 for n in (sinks, recent, window_queries)):
        raise TypeError(f"scorer '{name}': protects=(first, last) and window_queries are whole numbers of tokens")
    return _decorator(
        "scorer",
        name,
        tensors=_named(needs, _TENSORS),
        cost=cost,
        sinks_tokens=sinks,
        recent_tokens=recent,
        window_queries=window_queries,
        compare_heads=compare_heads,
    )


def scheduler(name: str, *, needs: Sequence[str] = ()) -> Callable[[Any], Any]:
    """A scheduler: the work of each step. Decorates a class with plan(self, view, plan). needs: "predicted_tokens" for view.predicted_tokens()."""
    return _decorator("scheduler", name, predicts="predicted_tokens" in _named(needs, ("predicted_tokens",)))


def block_cache(name: str) -> Callable[[Any], Any]:
    """A block cache: which unreferenced block is given up. Decorates a class with rank(self, block), of which the smallest goes first, or with
    victim(self, incoming)."""
    return _decorator("block cache", name)


def dispatcher(name: str) -> Callable[[Any], Any]:
    """A dispatcher: the replica of each stage of a request. Decorates a function route(request, replicas), or a class with such a method; it
    returns one of the replicas."""
    return _decorator("dispatcher", name)


_kvlab.take_policy_texts_from(lambda: {name: policy.text() for name, policy in tuple(declared.items())})
atexit.register(_kvlab.forget_policies)
