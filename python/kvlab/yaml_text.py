"""Python values as the YAML that the program reads."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

import yaml

from kvlab._kvlab import InputError


def plain(value: Any) -> Any:
    """The value with tuples and ranges as lists, paths as text, and numpy's scalars and arrays as Python's. InputError: YAML has no such type."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, range)):
        return [plain(item) for item in value]
    if isinstance(value, PathLike):
        return fspath(value)
    if hasattr(value, "tolist"):  # of numpy
        return plain(value.tolist())
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind.__new__(kind, value.value if isinstance(value, enum.Enum) else value)  # of subclasses, such as enum.IntEnum
    raise InputError(f"{value!r} is a {type(value).__name__}; an experiment takes numbers, texts, lists and mappings")


def flow(value: Any) -> str:
    """A value on one line: {"fixed": {"value": 3}} -> '{fixed: {value: 3}}'."""
    text = yaml.safe_dump(plain(value), default_flow_style=True, width=float("inf"), sort_keys=False, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def overrides(settings: Mapping[str, Any] | None) -> list[str]:
    """Settings by dotted key as the values of --set: {"seeds": 3} -> ['seeds=3']. TypeError: they are no mapping."""
    if settings is not None and not isinstance(settings, Mapping):
        raise TypeError(f"set= is a mapping, such as {{'seeds': 3}}, and not a {type(settings).__name__}")
    return [f"{key}={flow(value)}" for key, value in (settings or {}).items()]


def document(experiment: Mapping[str, Any]) -> str:
    """An experiment as the text of a file."""
    return yaml.safe_dump(plain(experiment), sort_keys=False, allow_unicode=True, width=120)
