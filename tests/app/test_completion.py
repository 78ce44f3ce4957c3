"""Completion of command lines, asked of the program and of bash, zsh and fish themselves. Run: python3 tests/app/test_completion.py"""

import functools
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("KVLAB_PROGRAM", ROOT / "build" / "release" / "kvlab"))
FRONT_DOOR = "doctor plot report bench build package test"
PATIENCE_S = 120  # for a shell on a loaded machine

# Collects what zsh adds as matches, for each line of the file `lines`. Options -O, -A and -D of compadd only filter arrays.
ZSH_PROBE = r"""
autoload -Uz compinit && compinit -D -u
source ./script.zsh
typeset -ga hits
compadd() {
  local -a found
  if [[ ${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then builtin compadd "$@"; return; fi
  builtin compadd -O found "$@"
  hits+=("${IPREFIX}${^found[@]}")
  builtin compadd "$@"
}
all-lines() {
  local line
  for line in "${(@f)$(<lines)}"; do
    hits=() BUFFER=$line CURSOR=$#line
    zle list-choices
    print -r -- "line $line" >>offers
    print -rl -- "${hits[@]}" >>offers
  done
  BUFFER=''
  print -r -- 'line' >>offers
}
zle -N all-lines
bindkey '^G' all-lines
LISTMAX=1000000
: >>offers
"""

# Calls the function that `complete` names with the variables that bash sets. Words are split at '=' and ':', too.
BASH_PROBE = r"""
source ./script.bash
name=$(complete -p kvlab); name=${name##*-F }; name=${name%% *}
while IFS= read -r line; do
  COMP_LINE=$line COMP_POINT=${#line} COMP_WORDS=()
  rest=$line
  while [[ $rest =~ ^([[:space:]]*)([=:]+|[^=:[:space:]]+) ]]; do COMP_WORDS+=("${BASH_REMATCH[2]}"); rest=${rest#"${BASH_REMATCH[0]}"}; done
  [[ $line != *[[:space:]] ]] || COMP_WORDS+=('')
  COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
  "$name" kvlab
  printf 'line %s\n' "$line"
  printf '%s\n' "${COMPREPLY[@]}"
done <lines
"""

FISH_PROBE = r"""
source ./script.fish
while read -l line
  printf 'line %s\n' $line
  complete -C $line
end <lines
"""


def run(*words, cwd=ROOT, **more):
    return subprocess.run([str(word) for word in words], cwd=cwd, check=True, capture_output=True, text=True, **more).stdout


def first_words(text):
    return [line.split()[0] for line in text.splitlines()]


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, command, folder, environment):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(command[0], command, environment)
        self.shown = ""

    def type(self, text):
        os.write(self.terminal, text.encode())

    def wait(self, is_done):
        end = time.monotonic() + PATIENCE_S
        while not is_done():
            if time.monotonic() > end:
                raise AssertionError(f"the shell printed only: {self.shown[-2000:]}")
            if select.select([self.terminal], [], [], 0.05)[0]:
                self.shown += os.read(self.terminal, 65536).decode(errors="replace")

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.close(self.terminal)
        os.waitpid(self.pid, 0)


@unittest.skipUnless(PROGRAM.exists(), f"{PROGRAM} is not built")
class Completion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)  # a shell that was ended may write a last file
        cls.folder = Path(cls.temporary.name)
        (cls.folder / ".local" / "share" / "fish" / "generated_completions").mkdir(parents=True)  # else fish reads all manual pages first
        wrapper = cls.folder / "bin" / "kvlab"  # other commands than `complete` print their words
        wrapper.parent.mkdir()
        wrapper.write_text(f'#!/bin/sh\nif [ "$1" = complete ]; then exec "{PROGRAM}" "$@"; fi\nprintf "ran <%s>\\n" "$@"\n')
        wrapper.chmod(0o755)
        for shell in ("bash", "zsh", "fish"):
            (cls.folder / f"script.{shell}").write_text(run(PROGRAM, "completion", shell))
        (cls.folder / "sub").mkdir()
        (cls.folder / "mine.yaml").write_text("")
        (cls.folder / "mine.txt").write_text("")
        results = cls.folder / "results" / "first"
        results.mkdir(parents=True)
        (results / ".kvlab.json").write_text("{}")
        (results / "summary.csv").write_text("run,trace.rate,scheduler,seed,ttft_p50_ms\n0001-ab,1,orca,1,5\n0002-cd,2,sarathi,1,6\n")

    @classmethod
    def tearDownClass(cls):
        cls.temporary.cleanup()

    # ---- the program ----

    def environment(self):
        own = {"HOME": str(self.folder), "ZDOTDIR": str(self.folder), "XDG_CONFIG_HOME": str(self.folder / "config"), "TERM": "xterm"}
        own["PATH"] = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        return {**os.environ, **own, "KVLAB_FRONT_DOOR": FRONT_DOOR}

    @functools.lru_cache(maxsize=None)
    def answer(self, *words):
        """The candidates with their descriptions, and the kind of paths that the shell adds."""
        lines = run(PROGRAM, "complete", "--", *words, cwd=self.folder, env=self.environment()).splitlines()
        return [tuple(line.split("\t")) for line in lines if not line.startswith(":")], "".join(line for line in lines if line.startswith(":"))

    def offers(self, *words):
        return [word for word, _ in self.answer(*words)[0]]

    @staticmethod
    @functools.lru_cache(maxsize=None)
    def help_of(*command):
        return run(PROGRAM, *command, "--help")

    @classmethod
    def commands(cls):
        """The commands that have none below them, as --help names them."""
        leaves, left = [], [[]]
        while left:
            command = left.pop()
            below = re.findall(r"^  (\w+) ", cls.help_of(*command).partition("\nSubcommands:\n")[2], re.MULTILINE)
            left += [[*command, word] for word in below]
            if not below:
                leaves.append(command)
        return sorted(leaves)

    @classmethod
    def options_of(cls, command):
        """Option name to the values in braces that --help prints for it."""
        found = re.findall(r"^ +(?:-\w,)?(--[\w-]+)(?: \w+(?::\{(.*)\})?)?", cls.help_of(*command), re.MULTILINE)
        return {name: values.split(",") if values else [] for name, values in found}

    def test_commands(self):
        self.assertEqual(self.offers("x", ""), self.offers("run"))  # an unknown word changes nothing
        self.assertLessEqual({command[0] for command in self.commands()}, set(self.offers("")))
        self.assertNotIn("complete", self.offers(""))
        self.assertIn(("inspect", "print rates, lengths and sharing of a trace"), self.answer("trace", "")[0])

    def test_options_and_their_closed_sets(self):
        sets = 0
        for command in self.commands():
            options = self.options_of(command)
            self.assertTrue(options, command)
            self.assertEqual(sorted(self.offers(*command, "--")), sorted(options), command)
            for option, values in options.items():
                if values:
                    sets += 1
                    self.assertEqual(self.offers(*command, option, ""), values, (command, option))
        self.assertGreater(sets, 4)

    def test_the_command_decides_on_an_options_values(self):
        exports = first_words(run(PROGRAM, "list", "export_formats"))
        self.assertEqual(self.offers("export", "results/first", "--format", ""), exports)
        self.assertEqual(self.offers("export", "--format=a"), ["--format=" + name for name in exports])
        self.assertEqual(self.offers("profile", "convert", "--format", ""), ["kvlab", "aisimulate", "bundle", "vidur"])
        self.assertEqual(self.offers("trace", "convert", "a", "b", "--to", ""), ["csv", "jsonl", "mooncake"])
        self.assertIn("repeat", self.offers("trace", "record", "--pass", ""))
        self.assertEqual(self.answer("run", "--model", ""), ([], ":folders"))
        self.assertEqual(self.offers("estimate", "--model", ""), first_words(run(PROGRAM, "list", "models")))

    def test_names(self):
        self.assertEqual(self.offers("estimate", "--hardware", ""), first_words(run(PROGRAM, "list", "hardware")))
        self.assertEqual(self.offers("reproduce", "a", ""), first_words(run(PROGRAM, "list", "claims")))
        self.assertEqual(self.answer("run", "")[1], ":yaml")
        self.assertEqual(self.offers("run", ""), first_words(run(PROGRAM, "list", "experiments")))
        kinds = run(PROGRAM, "list").split()
        self.assertEqual(self.offers("list", ""), kinds)
        self.assertEqual(self.offers("completion", ""), ["bash", "zsh", "fish"])
        described = {name for kind in kinds for name in first_words(run(PROGRAM, "list", kind))}
        self.assertEqual(set(self.offers("describe", "")), described)
        recipes = [line.split()[0] for line in run(PROGRAM, "list", "kv").splitlines() if line.split()[1] == "recipe"]
        self.assertEqual(self.offers("calibrate", "--kv-policy", "snapkv", ""), recipes)
        self.assertLess({"sarathi", "snapkv", "results/first"}, set(self.offers("cite", "")))
        self.assertNotIn("quickstart", self.offers("cite", ""))

    def test_results(self):
        for command in ("export", "pivot", "clean", "compare", "plot", "report"):
            self.assertEqual(self.answer(command, ""), ([("results/first", "")], ":folders"), command)
        self.assertEqual(self.offers("compare", "results/first", ""), ["results/first"])
        self.assertEqual(self.offers("results", ""), ["join", "clean", "first"])
        self.assertEqual(self.offers("results", "clean", ""), ["first"])
        self.assertEqual(self.answer("export", "results/first", "--run", "")[0], [("0001-ab", "1, orca"), ("0002-cd", "2, sarathi")])
        self.assertEqual(self.offers("pivot", "results/first", "--rows", ""), ["trace.rate", "scheduler"])
        self.assertEqual(self.offers("pivot", "results/first", "--metric", ""), ["ttft_p50_ms"])
        self.assertEqual(self.offers("pivot", "results/first", "--where", ""), ["trace.rate=", "scheduler="])
        self.assertEqual(self.offers("pivot", "results/first", "--where", "scheduler=o"), ["scheduler=orca", "scheduler=sarathi"])
        self.assertEqual(self.answer("pivot", "results/absent", "--rows", ""), ([], ""))

    def test_settings(self):
        schedulers = first_words(run(PROGRAM, "list", "schedulers"))
        self.assertEqual(self.offers("run", "x", "--set", "scheduler="), ["scheduler=" + name for name in schedulers])
        self.assertEqual(self.offers("run", "x", "--set=scheduler=s"), ["--set=scheduler=" + name for name in schedulers])
        top = self.offers("run", "x", "--set", "")
        self.assertLess({"host=", "model=", "trace.", "memory."}, set(top))
        self.assertNotIn("trace=", top)  # no value but a mapping
        self.assertIn("memory.hybrid=", self.offers("run", "x", "--set", "memory.h"))
        self.assertEqual(self.offers("run", "x", "--set", "memory.hybrid="), ["memory.hybrid=false", "memory.hybrid=true"])
        self.assertIn("scheduler.vllm_v1.budget_tokens=", self.offers("run", "x", "--set", "scheduler.vllm_v1."))
        self.assertIn("generate.", self.offers("trace", "generate", "x", "y", "--set", ""))
        self.assertEqual(self.answer("run", "x", "--set", "nothing.of."), ([], ""))

    def test_words_that_are_there_already(self):
        self.assertNotIn("--force", self.offers("run", "x", "--force", "--"))
        self.assertIn("--set", self.offers("run", "x", "--set", "seed=1", "--"))  # may be repeated
        self.assertNotIn("--sglang-args", self.offers("run", "x", "--vllm-args", "--seed 1", "--"))  # excluded
        self.assertEqual(self.offers("run", "x", "--vllm-args", "--"), [])
        self.assertIn("--jobs", self.offers("run", "x", ""))  # nothing else may follow

    # ---- the front doors ----

    def test_commands_of_the_front_door(self):
        front = (ROOT / "kvlab").read_text()
        own = set(re.findall(r"^  (\w+)\) ", front.split("\ncase $command in")[-1], re.MULTILINE)) | {"build"} - {"complete", "completion"}
        named = set(" ".join(re.findall(r"KVLAB_FRONT_DOOR\+?='([^']*)'", front)).split())
        self.assertEqual(named, own - {"complete", "completion"})
        self.assertEqual(named, set(FRONT_DOOR.split()))
        self.assertLessEqual(named, set(self.offers("")))
        self.assertNotIn("plot", run(PROGRAM, "complete", "--", "").split("\n"))
        for command, script in (("plot", "plots/plot.py"), ("report", "python/kvlab/report/report.py")):
            options = set(re.findall(r'add_argument\("(--\w+)"', (ROOT / script).read_text()))
            self.assertEqual(set(self.offers(command, "--")), options | {"--help"}, command)

    @unittest.skipUnless(PROGRAM == ROOT / "build" / "release" / "kvlab", "the front door runs another program")
    def test_the_front_door_builds_nothing(self):
        with tempfile.TemporaryDirectory() as empty:
            shutil.copy(ROOT / "kvlab", empty)
            (Path(empty) / "CMakeLists.txt").write_text("")
            done = subprocess.run([f"{empty}/kvlab", "complete", "--", ""], capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout, os.listdir(empty).count("build")), (1, "", 0))
        offered = first_words(run(ROOT / "kvlab", "complete", "--", ""))
        self.assertLessEqual({"run", "plot", "bench"}, set(offered))

    # ---- the shells ----

    def lines(self):
        """Each command with its options, with a closed set and with an argument; and the words that shells treat in their own ways."""
        all_lines = ["kvlab ", "kvlab desc", "kvlab plot --", "kvlab export results/first --format=ai", "kvlab run x --set scheduler=v",
                     "kvlab run x --set memory.hyb", "kvlab run quick", "kvlab run mi", "kvlab run s", "kvlab results ", "kvlab run --out=re",
                     "kvlab trace inspect mi", "kvlab describe sara", "kvlab estimate --hardware a100", "kvlab run x --vllm-args "]
        for command in self.commands():
            all_lines.append(f"kvlab {' '.join(command)} --")
            sets = [option for option, values in self.options_of(command).items() if values]
            all_lines += [f"kvlab {' '.join(command)} {option} " for option in sets]
        return all_lines

    def expected(self, line):
        """The program's candidates that begin with the last word, and paths of this folder."""
        words = line.split(" ")[1:]
        candidates, paths = self.answer(*words)
        option, _, typed = words[-1].rpartition("=") if words[-1].startswith("--") else ("", "", words[-1])
        found = {word: help_text for word, help_text in candidates if word.startswith(words[-1])}
        for path in self.folder.iterdir() if paths else []:
            fits = path.is_dir() or paths == ":files" or (paths == ":yaml" and path.suffix == ".yaml")
            if fits and path.name.startswith(typed) and not path.name.startswith("."):
                found[(option and option + "=") + path.name] = ""
        return found

    def compare(self, printed, prefix_of=lambda line: ""):
        """printed: for each line `line LINE` and the words offered, with descriptions after a tab if the shell prints them."""
        offered = {}
        for text in printed.splitlines():
            if text.startswith("line"):
                at = offered.setdefault(text[5:], {})
            elif text:
                word, _, help_text = text.partition("\t")
                at[word.rstrip("/")] = help_text
        for line in self.lines():
            expected = {word[len(prefix_of(line)):]: help_text for word, help_text in self.expected(line).items()}
            self.assertEqual(sorted(offered[line]), sorted(expected), line)
        return offered

    def write_lines(self):
        (self.folder / "lines").write_text("\n".join(self.lines()) + "\n")

    @unittest.skipUnless(shutil.which("bash"), "bash is not installed")
    def test_bash(self):
        self.write_lines()
        done = subprocess.run(["bash", "--norc", "-c", BASH_PROBE], cwd=self.folder, env=self.environment(), check=True, capture_output=True, text=True)
        self.assertEqual(done.stderr, "")
        self.compare(done.stdout, lambda line: line.split(" ")[-1].rpartition("=")[0] + "=" if "=" in line.split(" ")[-1] else "")

    @unittest.skipUnless(shutil.which("fish"), "fish is not installed")
    def test_fish(self):
        self.write_lines()
        printed = run("fish", "-c", FISH_PROBE, cwd=self.folder, env=self.environment())
        for line, words in self.compare(printed).items():
            helps = self.expected(line)
            for word, help_text in words.items():
                if helps[word]:
                    self.assertEqual(help_text, helps[word], line)

    @unittest.skipUnless(shutil.which("zsh"), "zsh is not installed")
    def test_zsh(self):
        self.write_lines()
        (self.folder / "probe.zsh").write_text(ZSH_PROBE)
        offers = self.folder / "offers"
        offers.unlink(missing_ok=True)
        shell = Terminal(["zsh", "-f", "-i"], self.folder, self.environment())
        try:
            shell.type("source ./probe.zsh\n")
            shell.wait(offers.exists)
            shell.type("\x07")
            shell.wait(lambda: offers.read_text().endswith("line\n"))
        finally:
            shell.close()
        self.compare(offers.read_text())

    def typed(self, shell, text):
        """Types text at the shell's prompt and returns the words that the program gets."""
        (self.folder / "config" / "fish").mkdir(parents=True, exist_ok=True)
        (self.folder / "rc.bash").write_text("source ./script.bash\nPS1='ready>'\n")
        (self.folder / ".zshrc").write_text("autoload -Uz compinit && compinit -D -u\nsource ./script.zsh\nPS1='ready>'\n")
        (self.folder / "config" / "fish" / "config.fish").write_text("source ./script.fish\nfunction fish_prompt; echo -n 'ready>'; end\n")
        commands = {"bash": ["bash", "--noprofile", "--rcfile", "rc.bash", "-i"], "zsh": ["zsh", "-d", "-i"], "fish": ["fish", "-i"]}
        terminal = Terminal(commands[shell], self.folder, self.environment())
        try:
            terminal.wait(lambda: "ready>" in terminal.shown)
            terminal.type(text + "end\n")
            terminal.wait(lambda: "ran <end>" in terminal.shown)
        finally:
            terminal.close()
        return re.findall(r"ran <(.*?)>", terminal.shown)

    def test_typed(self):
        """A word that is the only one is written in full: with a blank after it, but for KEY= and KEY."""
        for shell in ("bash", "zsh", "fish"):
            with self.subTest(shell):
                if not shutil.which(shell):
                    self.skipTest(f"{shell} is not installed")
                self.assertEqual(self.typed(shell, "kvlab exp\t--format=ai\t"), ["export", "--format=aiperf", "end"])
                settings = self.typed(shell, "kvlab run quickst\t--set memory.hyb\ttr\t")
                self.assertEqual(settings, ["run", "quickstart", "--set", "memory.hybrid=true", "end"])


if __name__ == "__main__":
    unittest.main()
