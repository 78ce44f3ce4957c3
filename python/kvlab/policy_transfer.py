"""Policies in Python sent to another process: the functions and classes by cloudpickle, and the text of each as it is here.

With the text the other process gives runs the same identity, so that their results are those of this process."""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import FunctionType, ModuleType
from typing import Any

from kvlab import policies
from kvlab._kvlab import InputError
from kvlab.policies import Declared
from kvlab.policy_text import is_installed


@dataclass(frozen=True)
class Sent:
    """A policy on its way. code: None where it cannot be sent, for the reason in `refusal`."""

    facts: dict[str, Any]
    text: str
    code: bytes | None
    refusal: str = ""


def _cloudpickle() -> Any:
    """Ray's own copy where there is one, so that its nodes need no other package."""
    try:
        from ray import cloudpickle
    except ImportError:
        try:
            import cloudpickle
        except ImportError:
            raise InputError("policies in Python are sent to other processes by the package cloudpickle: pip install cloudpickle") from None
    return cloudpickle


def _own_modules() -> dict[str, ModuleType]:
    """Modules of the user's own by name, which other machines need not have."""
    loaded = {name: m for name, m in tuple(sys.modules.items()) if isinstance(m, ModuleType) and m.__name__ == name and name != "__main__"}
    return {name: m for name, m in loaded.items() if not is_installed(getattr(m, "__file__", None))}


@contextlib.contextmanager
def _by_value(cloudpickle: Any) -> Iterator[None]:
    """Own modules travel with their contents meanwhile."""
    known = cloudpickle.list_registry_pickle_by_value()
    added = [module for name, module in _own_modules().items() if name not in known]
    for module in added:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in added:
            cloudpickle.unregister_pickle_by_value(module)


def _cached(function: Any, parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _reduced_cache(cached: Any) -> Any:
    """A functools.lru_cache as its function, where plain pickle sends a name alone."""
    module = sys.modules.get(cached.__module__)
    if module is not None and cached.__module__ != "__main__" and is_installed(getattr(module, "__file__", None)):
        return cached.__qualname__
    return _cached, (cached.__wrapped__, cached.cache_parameters())


def _set_contents(module: ModuleType, contents: dict[str, Any]) -> None:
    vars(module).update(contents)


def _contents(module: ModuleType) -> dict[str, Any]:
    return {name: value for name, value in vars(module).items() if name not in ("__builtins__", "__loader__", "__spec__")}


def _dumped(cloudpickle: Any, target: Any, modules: list[ModuleType]) -> bytes:
    """Pickles an object. modules: gets those that are sent with their contents, in the order in which they are met."""
    own, by_name = _own_modules(), cloudpickle.Pickler.dispatch_table[ModuleType]

    def reduced_module(module: ModuleType) -> Any:
        if own.get(module.__name__) is not module:
            return by_name(module)
        modules.append(module)
        # The contents come after the module itself, so that they may refer to it: packages import their parts, which import the package.
        return ModuleType, (module.__name__,), _contents(module), None, None, _set_contents

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc, name-defined]
        own_rules = {type(functools.lru_cache(_cached)): _reduced_cache, ModuleType: reduced_module}
        dispatch_table = collections.ChainMap(own_rules, cloudpickle.Pickler.dispatch_table)

    out = io.BytesIO()
    Pickler(out).dump(target)
    return out.getvalue()


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _refusal_of_module(cloudpickle: Any, modules: list[ModuleType]) -> str:
    """The variable of these modules that cannot be sent, with the reason; "" if all can be."""
    for module in reversed(modules):
        variables = [(name, value) for name, value in _contents(module).items() if not isinstance(value, ModuleType)]
        for name, value in sorted(variables, key=lambda v: isinstance(v[1], (FunctionType, type))):  # these may only use the variable
            try:
                _dumped(cloudpickle, value, [])
            except Exception as error:
                return f"module '{module.__name__}', which is sent with all its contents, has '{name}': {_told(error)}"
    return ""


def _sent(cloudpickle: Any, policy: Declared) -> Sent:
    text = policy.text()
    modules: list[ModuleType] = []
    try:
        return Sent(policy.facts, text, _dumped(cloudpickle, policy.target, modules))
    except Exception as error:  # of any object that the policy uses
        reason = _refusal_of_module(cloudpickle, modules) or _told(error)
        return Sent(policy.facts, text, None, f"it cannot be sent to another process: {reason}")


def packed() -> list[Sent]:
    """All policies that are known here. InputError: there are some, and no package cloudpickle."""
    known = tuple(policies.declared.values())
    if not known:
        return []
    cloudpickle = _cloudpickle()
    with _by_value(cloudpickle):
        return [_sent(cloudpickle, policy) for policy in known]


class NotSent(Exception):
    """A run uses a policy that did not come through."""


def _refused(refusal: str) -> Any:
    def make(**values: Any) -> Any:
        raise NotSent(refusal)

    return make


def _is_here(policy: Sent) -> bool:
    """True where the policy is one of this process's own, or was loaded from the same bytes: its text has no state of objects that it uses."""
    here = policies.declared.get(policy.facts["name"])
    if here is None or here.target is None or here.facts != policy.facts or here.text() != policy.text:
        return False
    return here.code is None or here.code == policy.code


def unpack(sent: list[Sent]) -> None:
    """Makes policies of another process known here. One that cannot be sent or loaded is an error of the runs that use it."""
    for policy in sent:
        if _is_here(policy):
            continue
        target, refusal = None, policy.refusal
        if policy.code is not None:
            try:
                target = _cloudpickle().loads(policy.code)
            except Exception as error:
                refusal = f"it cannot be loaded in this process: {_told(error)}"
        declared = Declared(target, policy.facts, lambda text=policy.text: text, policy.code)
        policies.add(declared, _refused(refusal) if refusal else None)
