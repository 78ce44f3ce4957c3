"""Files that are complete or absent: plots/whole_file.py. Run: python3 tests/plots/test_whole_file.py"""

import os
import resource
import signal
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "plots"))

import whole_file  # noqa: E402
from errors import ResultsError  # noqa: E402


class WholeFile(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.path = Path(place.name) / "page.html"

    def names(self):
        return sorted(p.name for p in self.path.parent.iterdir())

    def test_the_old_file_stays_until_the_new_one_is_complete(self):
        self.path.write_text("old")
        with whole_file.replacing(self.path) as fresh:
            fresh.write_text("new")
            self.assertEqual(self.path.read_text(), "old")
        self.assertEqual((self.path.read_text(), self.names()), ("new", ["page.html"]))

    def test_an_error_leaves_nothing_and_names_the_file(self):
        with self.assertRaises(ZeroDivisionError), whole_file.replacing(self.path) as fresh:
            fresh.write_text("part")
            raise ZeroDivisionError
        self.assertEqual(self.names(), [])
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, (soft, hard))
        with self.assertRaisesRegex(ResultsError, "page.html: cannot be written: File too large"), whole_file.replacing(self.path) as fresh:
            fresh.write_bytes(b"x" * 100_000)
        self.assertEqual(self.names(), [])

    def test_a_folder_in_its_place_is_named(self):
        self.path.mkdir()
        with self.assertRaisesRegex(ResultsError, "page.html: cannot be written"), whole_file.replacing(self.path):
            self.fail("a folder was taken for a file")

    def test_files_of_killed_processes_are_removed(self):
        dead, running = self.path.parent / ".page.html.new4194305", self.path.parent / f".page.html.new{os.getppid()}"
        for path in (dead, running):
            path.write_text("part")
        with whole_file.replacing(self.path) as fresh:
            fresh.write_text("new")
        self.assertEqual(self.names(), sorted([running.name, "page.html"]))


if __name__ == "__main__":
    unittest.main()
