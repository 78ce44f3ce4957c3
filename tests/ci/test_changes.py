"""Which checks of .ci/run a commit needs: .ci/changes.sh on small repositories, and the house's counts on small files."""

import importlib.machinery
import importlib.util
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def house():
    loader = importlib.machinery.SourceFileLoader("house", str(ROOT / ".ci/house"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("house", loader))
    loader.exec_module(module)
    return module


class Changes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.git("init", "-q", "-b", "main")
        self.git("config", "user.email", "a@b.c")
        self.git("config", "user.name", "a")
        self.first = self.commit({"kernels/a.cpp": "int a = 1;  // one\n", "docs/x.md": "x\n"})

    def git(self, *arguments):
        return subprocess.run(["git", "-C", self.folder.name, *arguments], check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, files):
        for name, content in files.items():
            path = Path(self.folder.name, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "c")
        return self.git("rev-parse", "HEAD")

    def shell(self, command):
        script = f'set -euo pipefail; source "{ROOT}/.ci/changes.sh"; everything=${{everything:-0}}; {command}'
        return subprocess.run(["bash", "-c", script], cwd=self.folder.name, capture_output=True, text=True)

    def changed(self, green, *paths):
        return self.shell(f'green={green}; changed {" ".join(paths)}').returncode == 0

    def test_a_change_of_code_counts_and_one_of_a_comment_does_not(self):
        self.commit({"kernels/a.cpp": "int a = 1;  // uno\n"})
        self.assertFalse(self.changed(self.first, "kernels"))
        self.commit({"kernels/a.cpp": "int a = 2;\n"})
        self.assertTrue(self.changed(self.first, "kernels"))
        self.assertFalse(self.changed(self.first, "docs"))

    def test_an_old_change_counts_until_a_commit_is_green(self):
        second = self.commit({"kernels/a.cpp": "int a = 2;\n"})
        for i in range(3):
            self.commit({"docs/x.md": f"{i}\n"})
        self.assertTrue(self.changed(self.first, "kernels"))
        self.assertFalse(self.changed(second, "kernels"))

    def test_without_a_green_commit_or_with_everything_all_counts(self):
        self.assertTrue(self.changed("", "docs"))
        self.assertEqual(self.shell(f"everything=1; green={self.first}; changed docs").returncode, 0)

    def test_the_nearest_ancestor_on_record_is_taken(self):
        second = self.commit({"docs/x.md": "y\n"})
        self.git("checkout", "-q", "-b", "other", self.first)
        elsewhere = self.commit({"docs/y.md": "y\n"})
        self.git("checkout", "-q", "main")
        self.commit({"docs/x.md": "z\n"})
        Path(self.folder.name, "state").write_text(f"{self.first}\n{second}\n{elsewhere}\n{'0' * 40}\n")
        self.assertEqual(self.shell("last_green state absent").stdout.strip(), second)
        self.assertEqual(self.shell("last_green absent").stdout.strip(), "")


class House(unittest.TestCase):
    def test_a_count_above_its_ceiling_is_found(self):
        self.assertEqual(house().compare({"a": 3, "b": 2}, {"ceilings": {"a": 2, "b": 2}}), ["a"])
        self.assertEqual(house().compare({"new": 0}, {"ceilings": {}}), ["new"])

    def test_functions_of_all_shapes_are_measured(self):
        source = """namespace kvlab {

int one(int a) {
  return a;
}

Two::Two(int a,
         int b)
    : a_(a), b_(b) {
  if (a) {
    b();
  }
}

struct Three {
  void four() const {
    each([](int i) {
      f(i);
    });
  }
};

}  // namespace kvlab
"""
        with tempfile.TemporaryDirectory() as folder:
            name = str(Path(folder, "a.cpp"))
            Path(name).write_text(source)
            self.assertEqual([(at, length) for at, length, _ in house().functions(name)], [(3, 3), (7, 7), (16, 5)])

    def test_units_that_include_each_other_count_each(self):
        module = house()
        found = module.rings(["a", "b", "c"], {"a": {"b"}, "b": {"c"}, "c": {"b"}})
        self.assertEqual([sorted(ring) for ring in found], [["b", "c"], ["a"]])


if __name__ == "__main__":
    unittest.main()
