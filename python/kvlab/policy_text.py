"""The text that a policy's behaviour follows from: a run is done again when it changes."""

from __future__ import annotations

import functools
import hashlib
import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_INSTALLED = (*{Path(sysconfig.get_path(key)).resolve() for key in ("stdlib", "platstdlib")}, Path(__file__).resolve().parent)


def is_installed(file: str | None) -> bool:
    """True of the standard library, installed packages and this one: their version says it all."""
    if not file:
        return True
    path = Path(file).resolve()
    return not {"site-packages", "dist-packages"}.isdisjoint(path.parts) or any(path.is_relative_to(folder) for folder in _INSTALLED)


def _version(name: str) -> str:
    top = sys.modules.get(name.partition(".")[0])
    return f"{name} {getattr(top, '__version__', sys.version.split()[0])}"


def _bytecode(code: CodeType) -> str:
    """The text for code without a source file. Line numbers and the file's name are left out."""
    constants = [_bytecode(c) if isinstance(c, CodeType) else sorted(map(repr, c)) if isinstance(c, frozenset) else repr(c) for c in code.co_consts]
    return f"{code.co_code.hex()} {constants} {code.co_names} {code.co_varnames} {code.co_freevars} {code.co_argcount} {code.co_kwonlyargcount}"


def _source(target: Any) -> str:
    try:
        # By the code object, since a wrapper's own source is not that of the function that it wraps.
        return textwrap.dedent(inspect.getsource(target.__code__ if isinstance(target, FunctionType) else target))
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
    """Globals and enclosing variables that a function refers to, and the defaults of its arguments, by name."""
    used = {n: function.__globals__[n] for n in _names(function.__code__) if n in function.__globals__ and not n.startswith("__")}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            used[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            pass
    defaults = {**dict(enumerate(function.__defaults__ or ())), **(function.__kwdefaults__ or {})}
    return {**used, **{f"default of {name}": value for name, value in defaults.items()}}


def _plain(value: Any) -> bool:
    if isinstance(value, _PLAIN):
        return True
    if isinstance(value, dict):
        return all(_plain(k) and _plain(v) for k, v in value.items())
    return isinstance(value, (tuple, list, set, frozenset)) and all(map(_plain, value))


def _text_of_module(name: str, module: ModuleType, seen: set[int]) -> str:
    """The files of a module and of the user's own modules that it imports; of others, the version."""
    file = getattr(module, "__file__", None)
    if is_installed(file):
        return _version(module.__name__)
    if id(module) in seen:
        return module.__name__
    seen.add(id(module))
    try:
        parts = [f"{name}: {hashlib.sha256(Path(file).read_bytes()).hexdigest()}"]
    except OSError:
        parts = [f"{name}: no file"]
    for key, value in sorted(vars(module).items()):
        used = sys.modules.get(value.__module__) if isinstance(value, (FunctionType, type)) else value
        if isinstance(used, ModuleType):
            parts.append(_text_of_module(key, used, seen))
    return "\n".join(parts)


def _parts_of(value: Any) -> dict[str, Any] | None:
    """The values that a container or a wrapped function consists of, by name; None: it is neither."""
    if isinstance(value, dict):
        return {repr(k) if _plain(k) else f"{type(k).__qualname__} {i}": v for i, (k, v) in enumerate(value.items())}
    if isinstance(value, (list, tuple)):
        return {str(i): item for i, item in enumerate(value)}
    if isinstance(value, functools.partial):
        return {"function": value.func, "arguments": value.args, "keywords": value.keywords}
    inner = getattr(value, "__wrapped__", None) or getattr(value, "__func__", None)  # functools.lru_cache; a bound method
    return {"function": inner} if isinstance(inner, FunctionType) else None


def _text_of_value(name: str, value: Any, seen: set[int]) -> str:
    if isinstance(value, ModuleType):
        return _text_of_module(name, value, seen)
    if isinstance(value, (FunctionType, type)):
        return _text(value, seen)
    if _plain(value):
        return f"{name} = {sorted(map(repr, value)) if isinstance(value, (set, frozenset)) else repr(value)}"
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):  # arrays
        return f"{name} = {value.dtype} {getattr(value, 'shape', '')} {value.tobytes().hex()}"
    if id(value) in seen:
        return name
    parts = _parts_of(value)
    if parts is not None:
        seen.add(id(value))
        return f"{name}: " + "\n".join(_text_of_value(key, part, seen) for key, part in parts.items())
    return f"{name}: {type(value).__module__}.{type(value).__qualname__}\n" + _text(type(value), seen)


def _text(target: Any, seen: set[int]) -> str:
    """A function or class of the user's own with everything of theirs that it uses; of others, the version."""
    if id(target) in seen:
        return target.__qualname__
    seen.add(id(target))
    module = sys.modules.get(target.__module__)
    code = getattr(target, "__code__", None)
    file = code.co_filename if code else getattr(module, "__file__", None)
    if target.__module__ != "__main__" and is_installed(file) and not str(file).startswith("<"):
        return f"{target.__module__}.{target.__qualname__} {_version(target.__module__)}"
    parts = [_source(target)]
    functions = [target] if isinstance(target, FunctionType) else list(_functions_of(target))
    for function in functions:
        parts += [_text_of_value(name, value, seen) for name, value in sorted(_used(function).items())]
    if inspect.isclass(target):
        parts += [_text_of_value(name, value, seen) for name, value in sorted(vars(target).items()) if not name.startswith("__") and _plain(value)]
        parts += [_text(base, seen) for base in target.__bases__ if base is not object]
    return "\n".join(parts)


def text_of(policy: Any) -> str:
    """The source of a function or class, of the user's own functions, classes, modules and plain values that it uses, and the versions of the
    packages. Functions without a source file count by their byte code. For another object that it uses, the class counts and not its state; a module
    that a function imports itself does not count."""
    return _text(policy, set())
