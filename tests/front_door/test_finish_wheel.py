"""Tests of .ci/finish_wheel.py: python3 tests/front_door/test_finish_wheel.py"""

import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / ".ci"))
sys.dont_write_bytecode = True

import finish_wheel  # noqa: E402

HEADER = """/**
 * MIT License
 *
 * Copyright (c) 2001 Somebody
 *
 * Permission is granted.
 */
#ifndef TABLE_H  /* not of the licence */
"""


class FinishWheel(unittest.TestCase):
    def test_a_failed_step_shows_its_errors(self):
        with self.assertRaises(SystemExit) as caught:
            finish_wheel.run(sys.executable, "-c", "import sys; sys.exit('no disk')")
        self.assertIn(sys.executable, str(caught.exception))
        self.assertIn("exit status 1\nno disk", str(caught.exception))
        self.assertEqual(finish_wheel.run(sys.executable, "-c", "print('done')"), "done\n")

    def test_the_licence_at_the_top_of_a_header(self):
        with tempfile.TemporaryDirectory() as place:
            path = Path(place) / "inner" / "table.h"
            path.parent.mkdir()
            path.write_text(HEADER)
            with mock.patch("importlib.metadata.files", lambda name: [path]):
                self.assertEqual(finish_wheel.licence_in_header("outer", "inner/table.h"), "MIT License\n\nCopyright (c) 2001 Somebody\n\nPermission is granted.\n")
                path.write_text("/* a table */")
                for header in ("inner/table.h", "inner/other.h"):
                    with self.assertRaisesRegex(SystemExit, f"outer: {header} with its licence is missing"):
                        finish_wheel.licence_in_header("outer", header)


if __name__ == "__main__":
    unittest.main()
