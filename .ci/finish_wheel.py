"""Finishes a wheel for other machines: python3 .ci/finish_wheel.py REPAIRED.whl dist

Adds the licences of the libraries that are in it, and refuses a wheel that has paths of this machine or search paths outside of itself. Then it
is installed into an environment of its own and used in an empty folder, with no compiler and no source tree in reach. .ci/wheel calls it."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Libraries that are compiled into the module: packages of Debian, packages of PyPI, and headers of another library in one of the latter.
HEADERS = ("libeigen3-dev", "libcli11-dev", "nlohmann-json3-dev", "libhnswlib-dev")
BINDINGS = ("nanobind",)
INNER = {"robin_map": ("nanobind", "tsl/robin_map.h")}
# Parts of paths: this checkout, the build folders of pip, and other checkouts whose objects a compiler cache may have returned.
FOREIGN = (str(ROOT), "pip-build-env", "wheel_tree")
SOURCE = re.compile(rb"/[\w./-]+/(?:policies|traces|app|serving|sim|engine|kernels|base|python/bindings)/[\w/]+\.(?:cpp|h)\b")


def run(*command: str | Path, **options: object) -> str:
    """Returns what the command prints. If it fails, the script ends with the command and its errors."""
    parts = [str(c) for c in command]
    try:
        return subprocess.run(parts, check=True, capture_output=True, text=True, **options).stdout  # type: ignore[call-overload]
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{' '.join(parts)}: exit status {error.returncode}\n{error.stderr or error.stdout}") from None


def plain_name(library: Path) -> str:
    """libfmt-a1b2c3d4.so.9.1.0 -> libfmt.so.9.1.0."""
    return re.sub(r"-[0-9a-f]{8}(?=\.so)", "", library.name)


def package_of(library: Path) -> str:
    """The Debian package that a bundled library was copied from."""
    name = plain_name(library)
    found = run("dpkg", "-S", f"*/{name}").splitlines()
    return found[0].split(":")[0]


def licence_of_package(package: str) -> str:
    path = Path("/usr/share/doc") / package / "copyright"
    if not path.is_file():
        raise SystemExit(f"{path}: the licence of a library in the wheel is missing")
    return path.read_text(encoding="utf-8")


def licence_of_distribution(name: str) -> str:
    files = [f for f in importlib.metadata.files(name) or [] if f.name.upper().startswith("LICEN")]
    if not files:
        raise SystemExit(f"{name}: the package has no licence file")
    return "\n\n".join(f.read_text() for f in files)


def licence_in_header(distribution: str, header: str) -> str:
    """The comment at the top of a header in a package of PyPI."""
    found = [f for f in importlib.metadata.files(distribution) or [] if str(f).endswith(header)]
    top = re.match(r"/\*(.*?)\*/", found[0].read_text(), re.DOTALL) if found else None
    if not top or "Copyright" not in top[1]:
        raise SystemExit(f"{distribution}: {header} with its licence is missing")
    return "\n".join(line.strip().removeprefix("*").strip() for line in top[1].strip().splitlines()[1:]) + "\n"


def add_licences(tree: Path) -> list[str]:
    """Writes the licences of all libraries beside the project's own. Returns their names."""
    (own,) = tree.glob("*.dist-info/licenses")
    if not any(own.rglob("LICENSE")):
        raise SystemExit("the wheel is without the project's LICENSE")
    packages = sorted({package_of(library) for library in tree.glob("*.libs/*.so*")} | set(HEADERS))
    texts = {**{p: licence_of_package(p) for p in packages}, **{d: licence_of_distribution(d) for d in BINDINGS}}
    texts.update({name: licence_in_header(*place) for name, place in INNER.items()})
    folder = own / "libraries"
    folder.mkdir()
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return sorted(texts)


def foreign_paths(content: bytes) -> set[str]:
    """Paths of the machine that built it, each once."""
    found = {text for text in FOREIGN if text.encode() in content}
    return found | {match.decode() for match in SOURCE.findall(content)}


def check_paths(tree: Path) -> None:
    failures = []
    for path in sorted(p for p in tree.rglob("*") if p.is_file()):
        content = path.read_bytes()
        found = sorted(foreign_paths(content))
        if found:
            failures.append(f"{path.relative_to(tree)}: {len(found)} paths of this machine, the first {found[0]}")
        if content.startswith(b"\x7fELF"):
            searched = re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", run("readelf", "-d", path))
            failures += [f"{path.relative_to(tree)}: searches libraries in {s}" for s in searched if not all(p.startswith("$ORIGIN") for p in s.split(":"))]
    if failures:
        raise SystemExit("the wheel cannot be used elsewhere:\n" + "\n".join(failures))


def try_out(wheel: Path) -> None:
    """Installs the wheel and runs a shipped experiment with its figures, by the command and by the module."""
    with tempfile.TemporaryDirectory(prefix="kvlab_wheel_") as place:
        venv, empty = Path(place) / "venv", Path(place) / "empty"
        empty.mkdir()
        run(sys.executable, "-m", "venv", venv)
        run(venv / "bin" / "pip", "install", "-q", wheel)
        alone = {"PATH": str(venv / "bin"), "HOME": place, "LANG": "C.UTF-8"}
        said = run(venv / "bin" / "kvlab", "run", "quickstart", "--set", "trace.limit_requests=60", cwd=empty, env=alone)
        drawn = sorted(p.name for p in (empty / "results" / "quickstart" / "figures").glob("*.png"))
        if "wrote results/quickstart" not in said or "cdf_ttft.png" not in drawn:
            raise SystemExit(f"a shipped experiment did not run as it should; figures: {drawn}\n{said}")
        run(venv / "bin" / "python", "-m", "kvlab", "describe", "sarathi", cwd=empty, env=alone)
        print(f"installed and ran quickstart in an empty folder: {len(drawn)} figures")


def main(repaired: Path, out: Path) -> None:
    if "manylinux" not in repaired.name:
        raise SystemExit(f"{repaired.name}: not a wheel for other machines")
    with tempfile.TemporaryDirectory(prefix="kvlab_wheel_") as place:
        run(sys.executable, "-m", "wheel", "unpack", repaired, "--dest", place)
        (tree,) = Path(place).iterdir()
        print(f"licences of {', '.join(add_licences(tree))}")
        check_paths(tree)
        out.mkdir(exist_ok=True)
        run(sys.executable, "-m", "wheel", "pack", tree, "--dest-dir", out)
    wheel = out / repaired.name
    print(f"{wheel}: {os.path.getsize(wheel) / 2**20:.1f} MiB")
    try_out(wheel)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
