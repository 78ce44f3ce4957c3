"""Draws the images of docs/gallery.md from results folders: python3 plots/gallery.py [RESULTS]

RESULTS: the folder that holds the results of the page's commands; results/ by default. An image is the figure that ./kvlab plot draws, at a
smaller size. An image whose results are absent is named, keeps its file, and makes the exit status 1.
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

import settings
import style
import written
from errors import ResultsError
from load import load
from plot import Drawn, draw_joint, kinds_of

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "images" / "gallery"
MOST_BYTES = 60_000
# Image, figure, results folders; two folders have a figure together.
IMAGES = (
    ("latency", "cdf_tpot", "quickstart"),
    ("comparison", "comparison", "quickstart"),
    ("load", "throughput_latency_ttft", "rate_sweep"),
    ("attainment", "attainment", "goodput"),
    ("routing", "comparison", "prefix_routing"),
    ("pools", "goodput", "disaggregated"),
    ("block_caches", "hit_ratio", "block_cache_mrc"),
    ("tiers", "throughput_latency_tpot", "lower_tiers"),
    ("fidelity", "fidelity_bytes", "replay_probe"),
    ("prefill", "prefill_attention", "prefill_replay"),
    ("accuracy", "accuracy_bytes", "accuracy_probe"),
    ("joint", "accuracy_serving", "accuracy_probe", "serving_kv_policies"),
)


def _draw(figure, folders, into):
    """Draws one figure of the folders as a PNG into `into`; returns its path. ResultsError: it cannot be drawn."""
    only = ["figures.all.draw=false", f"figures.{figure}.draw=true", "figures.all.format=[png]"]
    if len(folders) > 1:
        drawn = draw_joint(folders, overrides=only, into=into)
    else:
        results, drawn = load(folders[0]), Drawn(into)
        settings.start(results.folder, only)
        style.apply()
        written.start()
        for kind in kinds_of(results):
            drawn.add(kind.__name__, kind.draw(results, into))
    path = into / f"{figure}.png"
    if not path.is_file():
        raise ResultsError("; ".join([*drawn.failures, *drawn.notes]) or f"{folders[0]}: has no figure '{figure}'")
    return path


def _shrink(path, out):
    """Writes the image at two thirds of its size or less, with as many colours as keep it small."""
    whole = Image.open(path).convert("RGB")
    for scale in (0.67, 0.58, 0.5, 0.45):
        image = whole.resize((round(scale * whole.width), round(scale * whole.height)), Image.LANCZOS)
        for colours in (256, 128, 64):
            image.quantize(colours, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE).save(out, optimize=True)
            if out.stat().st_size <= MOST_BYTES:
                return
    raise ResultsError(f"{out}: has {out.stat().st_size} bytes, and an image of the gallery has at most {MOST_BYTES}")


def main(arguments):
    top, status = Path(arguments[0] if arguments else ROOT / "results"), 0
    OUT.mkdir(parents=True, exist_ok=True)
    for name, figure, *folders in IMAGES:
        with tempfile.TemporaryDirectory() as into:
            try:
                _shrink(_draw(figure, [top / f for f in folders], Path(into)), OUT / f"{name}.png")
                print(f"{OUT / name}.png: {figure} of {' and '.join(folders)}")
            except (ResultsError, OSError) as error:
                print(f"{name}: not drawn: {error}", file=sys.stderr)
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
