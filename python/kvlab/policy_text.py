"""The text that a policy's behaviour follows from: a run is done again when it changes."""

from __future__ import annotations

import builtins
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_INSTALLED = tuple({str(Path(sysconfig.get_path(key)).resolve()) for key in ("stdlib", "purelib", "platlib")})
_OWN = str(Path(__file__).resolve().parent)


def _is_installed(file: str | None) -> bool:
    """True of the standard library, installed packages and this one: their version says it all."""
    if not file:
        return True
    path = str(Path(file).resolve())
    return path.startswith((*_INSTALLED, _OWN))


def _version(name: str) -> str:
    top = sys.modules.get(name.partition(".")[0])
    return f"{name} {getattr(top, '__version__', sys.version.split()[0])}"


def _bytecode(code: CodeType) -> str:
    """The text for code without a source file. Line numbers and the file's name are left out."""
    constants = [_bytecode(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames} {code.co_freevars} {code.co_argcount} {code.co_kwonlyargcount}"


def _source(target: Any) -> str:
    try:
        return textwrap.dedent(inspect.getsource(target))
    except (OSError, TypeError):
        functions = [target] if isinstance(target, FunctionType) else list(_functions_of(target))
        return "\n".join(f"{f.__qualname__} {_bytecode(f.__code__)}" for f in functions)


def _functions_of(cls: type) -> Iterator[FunctionType]:
    for name in sorted(vars(cls)):
        member = inspect.getattr_static(cls, name)
        member = getattr(member, "fget", None) or getattr(member, "__func__", member)
        member = inspect.unwrap(member) if callable(member) else member
        if isinstance(member, FunctionType):
            yield member


def _names(code: CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
    return names


def _used(function: FunctionType) -> dict[str, Any]:
    """Globals and enclosing variables that a function refers to, by name."""
    used = {n: function.__globals__[n] for n in _names(function.__code__) if n in function.__globals__ and not hasattr(builtins, n)}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            used[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            pass
    return used


def _plain(value: Any) -> bool:
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, dict):
        return all(_plain(k) and _plain(v) for k, v in value.items())
    return isinstance(value, (tuple, list, set, frozenset)) and all(map(_plain, value))


def _text_of_value(name: str, value: Any, seen: set[int]) -> str:
    if isinstance(value, ModuleType):
        file = getattr(value, "__file__", None)
        return _version(value.__name__) if _is_installed(file) else f"{name}: {Path(file).read_text(encoding='utf-8')}"
    if isinstance(value, (FunctionType, type)):
        return _text(value, seen)
    if _plain(value):
        return f"{name} = {sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else repr(value)}"
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):  # arrays
        return f"{name} = {value.dtype} {getattr(value, 'shape', '')} {value.tobytes().hex()}"
    return f"{name}: {type(value).__module__}.{type(value).__qualname__}\n" + _text(type(value), seen)


def _text(target: Any, seen: set[int]) -> str:
    """A function or class of the user's own with everything of theirs that it uses; of others, the version."""
    if id(target) in seen:
        return target.__qualname__
    seen.add(id(target))
    module = sys.modules.get(target.__module__)
    code = getattr(target, "__code__", None)
    file = code.co_filename if code else getattr(module, "__file__", None)
    if target.__module__ != "__main__" and _is_installed(file) and not str(file).startswith("<"):
        return f"{target.__module__}.{target.__qualname__} {_version(target.__module__)}"
    parts = [_source(target)]
    functions = [target] if isinstance(target, FunctionType) else list(_functions_of(target))
    for function in functions:
        parts += [_text_of_value(name, value, seen) for name, value in sorted(_used(function).items())]
    if inspect.isclass(target):
        parts += [_text(base, seen) for base in target.__bases__ if base is not object]
    return "\n".join(parts)


def text_of(policy: Any) -> str:
    """The source of a function or class, of the user's own functions, classes, modules and plain values that it uses, and the versions of the
    packages. Functions without a source file count by their byte code. For another object that it uses, the class counts and not its state."""
    return _text(policy, set())
