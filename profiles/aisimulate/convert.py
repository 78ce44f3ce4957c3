"""Writes the measured tables of the Python package aisimulate (Apache-2.0) as CSV files that the simulator reads: docs/cost-model.md.

Called as ./kvlab profile convert --format aisimulate --system h100_sxm --backend vllm --version 0.24.0
"""

import argparse
import importlib.metadata
import importlib.util
import os
import re
import shutil
import sys
from pathlib import Path

import pandas as pd

import tables

COMMAND = "./kvlab profile convert --format aisimulate"
DEFAULT_OUT = Path("results") / "measured" / "aisimulate"
PACKAGE, DATA_PACKAGE = "aisimulate", "aisimulate_core"
HARDWARE_FOLDER = Path(__file__).resolve().parents[1] / "hardware"
# Our names in profiles/hardware of the package's systems, where they differ.
HARDWARE = {"h100_sxm": "h100", "h200_sxm": "h200", "a100_sxm": "a100-80gb", "rtx_pro_6000_server": "rtxpro6000", "b200_sxm": "b200",
            "b300_sxm": "b300", "gb200": "gb200", "l40s": "l40s"}
REQUIRED = ("gemm", "attention")


class ConvertError(Exception):
    """Something the user can mend; printed as one line."""


# ---- where the tables are ----

def package_data():
    """The data folder of the installed package and its version; nothing of the package is run."""
    found = importlib.util.find_spec(DATA_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise ConvertError(f"{sys.executable} has no package {PACKAGE}: '{sys.executable} -m pip install --pre {PACKAGE}', or name a folder "
                           f"that holds SYSTEM/gemm/BACKEND/VERSION/gemm_perf.parquet: {COMMAND} FOLDER ...")
    data = Path(found.submodule_search_locations[0]) / "systems" / "data"
    return data, f"{PACKAGE} {importlib.metadata.version(PACKAGE)}"


def version_key(version):
    """Sorts 0.9.1 before 0.24.0 and 1.3.0rc10 before 1.3.0rc20 before 1.3.0."""
    release = re.match(r"\d+(\.\d+)*", version)
    numbers = [int(n) for n in release.group().split(".")] if release else []
    rest = version[release.end():] if release else version
    return numbers, rest == "", [int(n) for n in re.findall(r"\d+", rest)], rest


def folders_in(folder):
    return sorted((p.name for p in folder.iterdir() if p.is_dir()), key=version_key) if folder.is_dir() else []


def known(names, what):
    return f"there is {', '.join(names)}" if names else f"there is no {what}"


def check_names(data, system, backend, version):
    """Says what there is in place of a name that is not there."""
    if system not in folders_in(data):
        raise ConvertError(f"{data} has no system '{system}': {known(folders_in(data), 'system')}")
    if backend not in folders_in(data / system / "gemm"):
        raise ConvertError(f"{data / system} has no gemm tables of '{backend}': {known(folders_in(data / system / 'gemm'), 'backend')}")
    versions = [v for v in folders_in(data / system / "gemm" / backend) if is_complete(data / system, backend, v)]
    if version not in versions:
        raise ConvertError(f"{data / system} has no gemm and attention tables of {backend} '{version}': {known(versions, 'version')}")


def is_complete(system, backend, version):
    return all((system / family / backend / version).is_dir() for family in REQUIRED)


def print_inventory(data):
    for system in folders_in(data):
        for backend in folders_in(data / system / "gemm"):
            for version in folders_in(data / system / "gemm" / backend):
                if not is_complete(data / system, backend, version):
                    continue
                families = [f for f in folders_in(data / system) if (data / system / f / backend / version).is_dir()]
                print(f"{system} {backend} {version}: {' '.join(families)}")


def family_file(system, family, backend, version, name, notes):
    """A table of that version; without one the newest older one of the same backend, which is noted; None: there is none."""
    versions = [v for v in folders_in(system / family / backend) if (system / family / backend / v / name).is_file()]
    if version in versions:
        return system / family / backend / version / name
    older = [v for v in versions if version_key(v) <= version_key(version)]
    if not older:
        return None
    notes.append(f"{name} is of {backend} {older[-1]}: {version} has none")
    return system / family / backend / older[-1] / name


# ---- the card ----

def figures_in(file):
    """The numbers of a YAML file by key, at any depth; keys that repeat keep the first."""
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        match = re.match(r"\s*(\w+):\s*([0-9][0-9.eE+]*)\s*(#.*)?$", line)
        if match:
            found.setdefault(match.group(1), float(match.group(2)))
    return found


def card_of(system, data, hardware):
    """Datasheet figures: of profiles/hardware, else of the package's own file of the system; None: neither is there."""
    ours = HARDWARE_FOLDER / f"{hardware}.yaml"
    if ours.is_file():
        f = figures_in(ours)
        return tables.Card(f["memory_bandwidth_bytes_per_s"], f.get("l2_bytes", 0), f.get("bf16_flops", f["fp16_flops"]), f.get("fp8_flops"),
                           f.get("fp4_flops"), f.get("int8_ops_per_s"))
    theirs = data.parent / f"{system}.yaml"
    if theirs.is_file():
        f = figures_in(theirs)
        return tables.Card(f["mem_bw"], 0, f["bfloat16_tc_flops"], f.get("fp8_tc_flops"), f.get("fp4_tc_flops"), f.get("int8_tc_flops"))
    return None


# ---- writing ----

def read(file):
    try:
        return pd.read_parquet(file)
    except (OSError, ValueError) as e:
        raise ConvertError(f"{file}: {e}") from e


def write_table(frame, out, name):
    """Columns as they are, then whole picoseconds as nanoseconds."""
    frame = frame.copy()
    for column in [c for c in frame.columns if c.endswith("_ns")]:
        frame[column] = frame[column].map("{:.3f}".format)
    frame.to_csv(out / f"{name}.csv", index=False)


def quoted(text):
    return '"' + str(text).replace("\\", "\\\\").replace('"', '\\"') + '"'


def write_meta(out, fields, notes):
    lines = ["schema_version: 1", "tables: by_shape", "time_unit: ns"]
    lines += [f"{key}: {quoted(value)}" for key, value in fields.items()]
    lines += ["notes:"] + [f"  - {quoted(note)}" for note in notes] if notes else []
    (out / "meta.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")


def convert(data, source, arguments, out):
    """Writes one folder; returns the notes."""
    check_names(data, arguments.system, arguments.backend, arguments.version)
    system, notes, device = data / arguments.system, [], ""
    hardware = arguments.hardware or HARDWARE.get(arguments.system, arguments.system)
    card = card_of(arguments.system, data, hardware)
    if card is None:
        notes.append(f"rows were not compared with a datasheet: there is no profiles/hardware/{hardware}.yaml")
    for family, name, make in (("gemm", "gemm_perf", tables.gemm), ("attention", "generation_attention_perf", tables.decode),
                               ("attention", "context_attention_perf", tables.prefill), ("moe", "moe_perf", tables.moe)):
        file = family_file(system, family, arguments.backend, arguments.version, f"{name}.parquet", notes)
        if file is None:
            if family in REQUIRED:
                raise ConvertError(f"{system / family / arguments.backend / arguments.version} has no {name}.parquet")
            continue
        frame = read(file)
        device = device or next(iter(frame.get("device", [""])), "")
        for table, rows in make(frame, card, arguments, notes).items():
            write_table(rows, out, table)
    custom = family_file(system, "comm", arguments.backend, arguments.version, "custom_allreduce_perf.parquet", notes)
    nccl = [read(system / "comm" / "nccl" / v / "nccl_perf.parquet") for v in reversed(folders_in(system / "comm" / "nccl"))]
    for table, rows in tables.collectives(read(custom) if custom else None, nccl, notes).items():
        write_table(rows, out, table)
    write_meta(out, {"system": arguments.system, "backend": arguments.backend, "version": arguments.version, "device": device,
                     "hardware": hardware, "source": source}, notes)
    return notes


def replace_folder(made, out):
    """Puts the new folder in place of an older conversion; any other folder is left alone."""
    if out.exists():
        meta = out / "meta.yaml"
        if not meta.is_file() or "tables: by_shape" not in meta.read_text(encoding="utf-8"):
            raise ConvertError(f"{out}: exists and is no conversion of these tables; choose another --out")
        shutil.rmtree(out)
    os.replace(made, out)


def parse(arguments):
    parser = argparse.ArgumentParser(prog=COMMAND, description="Measured tables of the Python package aisimulate for simulations.")
    parser.add_argument("source", nargs="?", type=Path, help="folder of SYSTEM/FAMILY/BACKEND/VERSION/*.parquet; default: the installed package's")
    parser.add_argument("--system", help="such as h100_sxm")
    parser.add_argument("--backend", default="vllm", help="vllm, trtllm or sglang; default: vllm")
    parser.add_argument("--version", help="of the backend")
    parser.add_argument("--out", type=Path, help=f"folder to write; default: {DEFAULT_OUT}/SYSTEM/BACKEND/VERSION, where experiments look")
    parser.add_argument("--hardware", help="card in profiles/hardware to compare rows with; default: by the system's name")
    parser.add_argument("--routing", default="power_law_1.2", help="distribution of tokens over experts in the MoE table; default: power_law_1.2")
    parser.add_argument("--list", action="store_true", help="print the systems, backends and versions that there are")
    return parser.parse_args(arguments)


def main(arguments):
    a = parse(arguments)
    data, source = (a.source, f"{a.source.name} (tables of {PACKAGE})") if a.source else package_data()
    if a.list:
        print_inventory(data)
        return
    if not a.system or not a.version:
        raise ConvertError(f"--system and --version are needed; '{COMMAND} --list' prints what there is")
    out = a.out or DEFAULT_OUT / a.system / a.backend / a.version
    made = out.with_name(out.name + ".part")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir(parents=True)
    try:
        notes = convert(data, source, a, made)
        replace_folder(made, out)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    print(f"wrote {out}: {', '.join(sorted(p.stem for p in out.glob('*.csv')))}")
    for note in notes:
        print(f"note: {note}")


if __name__ == "__main__":
    try:
        main([a for a in sys.argv[1:]])
    except ConvertError as error:
        print(f"kvlab: {error}", file=sys.stderr)
        sys.exit(2)
