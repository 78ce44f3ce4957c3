"""Runs the code cells of docs/notebooks/*.ipynb with the installed package: python3 tests/python/test_notebook.py

Cells run as in a notebook: the last expression of each is shown, by its HTML where it has one."""

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def run_cell(source, variables, place):
    """Runs a cell and returns what a notebook would show below it."""
    tree = ast.parse(source, place)
    shown = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, place, "exec"), variables)
    value = eval(compile(shown, place, "eval"), variables) if shown else None
    return "" if value is None else value._repr_html_() if hasattr(value, "_repr_html_") else repr(value)


class Notebooks(unittest.TestCase):
    def setUp(self):
        done = subprocess.run([sys.executable, "-c", "import kvlab"], cwd=tempfile.gettempdir(), capture_output=True, text=True, check=False)
        if done.returncode:
            self.skipTest(f"{sys.executable} has no package kvlab (pip install .): {done.stderr.strip().splitlines()[-1]}")
        place = Path(tempfile.mkdtemp(prefix="kvlab_notebook_"))
        self.addCleanup(shutil.rmtree, place)
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(place)

    def test_cells_run(self):
        self.assertTrue(NOTEBOOKS)
        for path in NOTEBOOKS:
            notebook = json.loads(path.read_text(encoding="utf-8"))
            cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
            self.assertTrue(cells, path)
            variables, shown = {}, []
            for number, cell in enumerate(cells, 1):
                with self.subTest(notebook=path.name, cell=number):
                    self.assertEqual(cell["outputs"], [], "outputs are not committed")
                    shown.append(run_cell("".join(cell["source"]), variables, f"{path.name}, cell {number}"))
            self.assertTrue(any("<table" in text for text in shown), "no frame is shown")
            self.assertTrue(any("data:image/png" in text for text in shown), "no figure is shown")


if __name__ == "__main__":
    unittest.main()
