"""The checks of .ci/prose on small texts: paragraphs, accent words, paths of files."""

import importlib.machinery
import importlib.util
import json
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def prose():
    loader = importlib.machinery.SourceFileLoader("prose", str(ROOT / ".ci/prose"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("prose", loader))
    loader.exec_module(module)
    return module


class Paragraphs(unittest.TestCase):
    def test_long_paragraphs_are_named_by_file_and_line(self):
        text = "# A heading\n\nshort\n\n" + "word " * 50 + "\n" + "word " * 31 + "\n"
        self.assertEqual(prose().long_paragraphs("docs/a.md", text), ["docs/a.md:5: a paragraph of 81 words; at most 80"])
        self.assertEqual(prose().long_paragraphs("docs/a.md", "word " * 80), [])

    def test_lists_tables_and_code_do_not_count(self):
        words = "word " * 90
        asides = [f"- {words}", f"- a\n  {words}", f"- a\n{words}", f"1. a\n\n   {words}", f"| {words} |", f"```\n{words}\n```", f"text:\n\n    {words}",
                  f"# {words}"]
        for text in asides:
            self.assertEqual(prose().long_paragraphs("docs/a.md", text), [], text[:20])

    def test_a_paragraph_after_a_list_counts(self):
        self.assertEqual(len(prose().long_paragraphs("docs/a.md", "- a\n- b\n\n" + "word " * 90)), 1)


class Paths(unittest.TestCase):
    TRACKED = ("app/run.cpp", "base/config/params.h", "base/config/yaml.h", "docs/a.md")

    def missing(self, text):
        return prose().missing_paths("docs/a.md", text, self.TRACKED, ("traces/public/", "app/made/"))

    def test_a_path_that_is_not_there(self):
        self.assertEqual(self.missing("one\n\n`app/none.cpp` and `app/run.cpp`\n"), ["docs/a.md:3: app/none.cpp does not exist"])
        self.assertEqual(self.missing("`base/config/{params,none}.h`"), ["docs/a.md:1: base/config/none.h does not exist"])
        self.assertEqual(self.missing("`kvlab run app/gone.yaml --out x`"), ["docs/a.md:1: app/gone.yaml does not exist"])

    def test_folders_patterns_lines_placeholders_and_ignored_files(self):
        self.assertEqual(self.missing("`app/` `base/config` `base/*/params.h` `app/run.cpp:12` `app/NAME.cpp` `$X/app/a` `app/made/x` `other/a.h`"), [])

    def test_files_that_a_tutorial_makes(self):
        self.assertEqual(self.missing("`app/mine.cpp` `app/mine.yaml`\n\n```cpp app/mine.cpp\nint a;\n```\n"), [])


class Accents(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.prose = prose()
        self.prose.RECORD = Path(self.folder.name) / "house.json"

    def keeps(self, text, ceiling, update=False):
        source = Path(self.folder.name) / "a.h"
        source.write_text(text, encoding="utf-8")
        accents = dict.fromkeys(self.prose.ACCENTS, ceiling)
        self.prose.RECORD.write_text(json.dumps({"ceilings": {"x": 1}, "accent_words": accents}), encoding="utf-8")
        self.prose.pieces.cache_clear()
        return self.prose.within_ceilings(self.prose.accent_counts([str(source)], False), update)

    def test_counts_are_compared_with_their_ceilings(self):
        text = "// Runs alone, in a thread of its own.\nint alone;  // of their own\n"
        self.assertTrue(self.keeps(text, 2))
        self.assertFalse(self.keeps(text, 1))

    def test_update_only_lowers(self):
        self.assertTrue(self.keeps("// Runs alone.\n", 3, update=True))
        record = json.loads(self.prose.RECORD.read_text(encoding="utf-8"))
        self.assertEqual((record["accent_words"]["alone"], record["accent_words"]["anew"], record["ceilings"]), (1, 0, {"x": 1}))
        self.assertFalse(self.keeps("// Alone, alone.\n", 1, update=True))


if __name__ == "__main__":
    unittest.main()
