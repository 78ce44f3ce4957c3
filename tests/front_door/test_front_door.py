"""Tests of ./kvlab with a made-up program, cmake and dpkg-query around it. Run: python3 tests/front_door/test_front_door.py"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """#!/bin/sh
case "$1" in
  echo) shift; printf '<%s>' "$@"; echo ;;
  status) exit "$2" ;;
  wait) echo started; exec sleep 30 ;;
  validate) exit 2 ;;
  run) mkdir -p "$2" && printf 'wrote %s\\n' "$2" && printf '%s' "$2" >"$KVLAB_RESULT_FILE"; exit "${3:-0}" ;;
esac
"""
# In place of cmake: notes that it was called, and "builds" the program. A file named `broken` makes it fail.
CMAKE = """#!/bin/sh
echo "$@" >>"$FAKE/cmake_calls"
if [ -e "$FAKE/broken" ]; then echo 'FAILED: x.o'; echo 'x.cpp:1:1: error: made up'; exit 1; fi
mkdir -p "$FAKE/checkout/build/release"
for preset in release cuda; do
  [ -d "$FAKE/checkout/build/$preset" ] || continue
  touch "$FAKE/checkout/build/$preset/build.ninja"
  mkdir -p "$FAKE/checkout/build/$preset/bench"
  case "$*" in
    *'--target kvlab_sim'*) cp "$FAKE/program" "$FAKE/checkout/build/$preset/kvlab_sim" ;;
    --build*) cp "$FAKE/program" "$FAKE/checkout/build/$preset/kvlab" ;;
  esac
  for name in kernel sim; do
    printf '#!/bin/sh\\necho %s %s_bench "$@"\\nexit ${%s_status:-0}\\n' $preset $name $name >"$FAKE/checkout/build/$preset/bench/${name}_bench"
    chmod +x "$FAKE/checkout/build/$preset/bench/${name}_bench"
  done
done
"""
DPKG = """#!/bin/sh
for name in "$@"; do
  case "$name" in -*|*'${'*) continue ;; esac
  grep -qx "$name" "$FAKE/missing" || printf 'installed:%s ' "$name"
done
"""
DRAW = "import sys; print('drawing', sys.argv[-1], file=sys.stderr)\n"


class FrontDoor(unittest.TestCase):
    def setUp(self):
        self.fake = Path(tempfile.mkdtemp(prefix="kvlab_door_"))
        self.addCleanup(shutil.rmtree, self.fake)
        self.root = self.fake / "checkout"
        (self.root / "base").mkdir(parents=True)
        (self.root / "base" / "a.cpp").write_text("")
        (self.root / "CMakeLists.txt").write_text("")
        (self.root / "plots").mkdir()
        (self.root / "plots" / "plot.py").write_text(DRAW)
        shutil.copy(ROOT / "kvlab", self.root / "kvlab")
        self.script("program", PROGRAM)
        self.script("bin/cmake", CMAKE)
        self.script("bin/dpkg-query", DPKG)
        (self.fake / "missing").write_text("")
        self.env = {**os.environ, "FAKE": str(self.fake), "PATH": f"{self.fake / 'bin'}:{os.environ['PATH']}", "KVLAB_NO_INSTALL": "1",
                    "KVLAB_PYTHON": sys.executable}

    def script(self, name, text):
        path = self.fake / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def kvlab(self, *arguments, door=None, cwd=None, **environment):
        return subprocess.run([str(door or self.root / "kvlab"), *arguments], capture_output=True, text=True, cwd=cwd or self.fake,
                              env={**self.env, **environment}, stdin=subprocess.DEVNULL, timeout=60)

    def cmake_calls(self):
        calls = self.fake / "cmake_calls"
        return calls.read_text().splitlines() if calls.exists() else []

    def test_arguments_and_stdout_pass_unchanged(self):
        result = self.kvlab("echo", "a b", "", "*", "--flag=c d")
        self.assertEqual(result.stdout, "<a b><><*><--flag=c d>\n")
        self.assertIn("built build/release", result.stderr)

    def test_exit_status_is_the_programs(self):
        for status in (0, 1, 2, 77):
            self.assertEqual(self.kvlab("status", str(status)).returncode, status)
        self.assertEqual(self.kvlab("run", "results/x", "3").returncode, 3)

    def test_works_through_links_from_anywhere(self):
        link = self.fake / "link to kvlab"
        link.symlink_to(self.root / "kvlab")
        self.assertEqual(self.kvlab("echo", "x", door=link, cwd="/").stdout, "<x>\n")

    def test_second_run_does_not_call_cmake(self):
        self.kvlab("echo")
        calls = len(self.cmake_calls())
        self.assertEqual(calls, 2)  # configure, build
        began = time.monotonic()
        result = self.kvlab("echo")
        self.assertLess(time.monotonic() - began, 1.0)  # 0.02 s on an idle machine
        self.assertEqual((len(self.cmake_calls()), result.stderr), (calls, ""))

    def test_what_changed_is_built(self):
        changes = [lambda: (self.root / "base" / "a.cpp").write_text("int a;"), lambda: (self.root / "base" / "b.h").write_text(""),
                   lambda: (self.root / "base" / "b.h").unlink(), lambda: (self.root / "CMakeLists.txt").write_text("")]
        self.kvlab("echo")
        for change in changes:
            before = len(self.cmake_calls())
            time.sleep(0.02)
            change()
            self.kvlab("echo")
            self.assertEqual(len(self.cmake_calls()), before + 1)  # build only: it is configured

    def test_what_is_not_compiled_is_not_built(self):
        self.kvlab("echo")
        before = len(self.cmake_calls())
        time.sleep(0.02)
        (self.root / "README.md").write_text("")
        (self.root / "results").mkdir()
        self.kvlab("echo")
        self.assertEqual(len(self.cmake_calls()), before)

    def test_a_moved_checkout_is_configured_afresh(self):
        self.kvlab("echo")
        moved = self.root.rename(self.fake / "moved")
        result = self.kvlab("echo", door=moved / "kvlab")
        self.assertIn("--fresh", self.cmake_calls()[2])
        self.assertEqual(result.stdout, "<>\n")

    def test_failed_build_shows_the_error_and_is_tried_again(self):
        (self.fake / "broken").write_text("")
        result = self.kvlab("echo")
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("x.cpp:1:1: error: made up", result.stderr)
        (self.fake / "broken").unlink()
        self.assertEqual(self.kvlab("echo", "x").stdout, "<x>\n")

    def test_missing_packages_without_installing(self):
        (self.fake / "missing").write_text("libfmt-dev\ncmake\n")
        result = self.kvlab("echo")
        self.assertEqual((result.returncode, result.stdout, self.cmake_calls()), (2, "", []))
        self.assertIn("missing packages: cmake libfmt-dev\n", result.stderr)
        self.assertIn("sudo apt-get install -y --no-install-recommends cmake libfmt-dev\n", result.stderr)

    def test_root_installs_what_is_missing_and_says_so(self):
        (self.fake / "missing").write_text("libfmt-dev\n")
        self.script("bin/id", "#!/bin/sh\necho 0\n")
        self.script("bin/apt-get", '#!/bin/sh\necho "$@" >>"$FAKE/apt_calls"\n[ "$1" = update ] || : >"$FAKE/missing"\n')
        result = self.kvlab("echo", "x", KVLAB_NO_INSTALL="0")
        self.assertEqual((result.returncode, result.stdout), (0, "<x>\n"))
        self.assertIn("installing with apt: libfmt-dev\n", result.stderr)
        calls = (self.fake / "apt_calls").read_text().splitlines()
        self.assertEqual(calls, ["update -qq", "install -y -qq --no-install-recommends libfmt-dev"])

    def test_apt_that_fails_is_shown(self):
        (self.fake / "missing").write_text("libfmt-dev\n")
        self.script("bin/id", "#!/bin/sh\necho 0\n")
        self.script("bin/apt-get", "#!/bin/sh\necho 'E: made up'\nexit 100\n")
        result = self.kvlab("echo", KVLAB_NO_INSTALL="0")
        self.assertEqual((result.returncode, self.cmake_calls()), (2, []))
        self.assertIn("E: made up", result.stderr)

    def test_packages_of_the_tests_are_not_needed_to_run(self):
        (self.fake / "missing").write_text("libgtest-dev\n")
        self.assertEqual(self.kvlab("echo", "x").stdout, "<x>\n")
        self.assertIn("-DKVLAB_TESTS=OFF", self.cmake_calls()[0])
        result = self.kvlab("test")
        self.assertEqual(result.returncode, 2)
        self.assertIn("missing packages: libgtest-dev\n", result.stderr)

    def test_an_installed_program_builds_nothing_and_finds_its_data(self):
        self.kvlab("status", "0")  # builds
        (self.root / "CMakeLists.txt").unlink()
        self.script("checkout/build/release/kvlab", "#!/bin/sh\necho \"$KVLAB_HOME\"\n")
        before = len(self.cmake_calls())
        self.assertEqual(self.kvlab("list").stdout, f"{self.root}\n")
        self.assertEqual(self.kvlab("test").returncode, 2)
        self.assertEqual(len(self.cmake_calls()), before)

    def test_a_new_checkout_simulates_before_the_whole_program_is_built(self):
        serving, recipe = self.fake / "serving.yaml", self.fake / "recipe.yaml"
        serving.write_text("trace: {file: a.csv}\nscheduler: sarathi\n")
        recipe.write_text("trace: {file: a.csv}\nkv_policy: snapkv\n")
        targets = lambda: [c.split("--target ")[1].split()[0] for c in self.cmake_calls() if "--target" in c]
        self.kvlab("run", str(serving))
        self.assertEqual(targets(), ["kvlab_sim"])
        self.kvlab("run", str(serving))
        self.assertEqual(targets(), ["kvlab_sim"])  # up to date
        self.kvlab("run", str(serving), "--set", "kv_policy={recipe: h2o}")
        self.assertEqual(targets(), ["kvlab_sim", "kvlab"])
        shutil.rmtree(self.root / "build")
        self.kvlab("run", str(recipe))
        self.assertEqual(targets()[2:], ["kvlab"])  # a KV policy needs the whole program
        self.kvlab("run", str(serving))
        self.assertEqual(len(targets()), 3)  # the whole program is there

    def test_run_draws_where_the_program_wrote(self):
        result = self.kvlab("run", "results/some name")
        self.assertEqual((result.returncode, result.stdout), (0, "wrote results/some name\n"))
        self.assertIn("drawing results/some name", result.stderr)

    def test_figures_of_what_is_complete_although_a_run_failed(self):
        result = self.kvlab("run", "results/x", "2")
        self.assertEqual(result.returncode, 2)
        self.assertIn("drawing results/x", result.stderr)

    def test_no_figures_without_results_or_when_unwanted(self):
        self.assertNotIn("drawing", self.kvlab("validate", "results/x").stderr)
        self.assertNotIn("drawing", self.kvlab("run", "results/x", KVLAB_NO_FIGURES="1").stderr)

    def test_run_without_python_warns_in_one_line(self):
        self.kvlab("echo")
        result = self.kvlab("run", "results/x", KVLAB_PYTHON="/no/such/python")
        self.assertEqual((result.returncode, result.stdout), (0, "wrote results/x\n"))
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn("no figures: KVLAB_PYTHON=/no/such/python lacks", result.stderr)
        self.assertEqual(self.kvlab("plot", "results/x", KVLAB_PYTHON="/no/such/python").returncode, 2)

    def test_report_is_written_by_python_and_builds_nothing(self):
        (self.root / "python" / "kvlab" / "report").mkdir(parents=True)
        (self.root / "python" / "kvlab" / "report" / "report.py").write_text("import sys; print(sys.argv[1:]); sys.exit(2)\n")
        result = self.kvlab("report", "results/a b", "results/c")
        self.assertEqual((result.returncode, result.stdout, self.cmake_calls()), (2, "['results/a b', 'results/c']\n", []), result.stderr)
        without = self.kvlab("report", "results/x", KVLAB_PYTHON="/no/such/python")
        self.assertEqual(without.returncode, 2)
        self.assertIn("KVLAB_PYTHON=/no/such/python lacks", without.stderr)

    def test_doctor_installs_and_builds_nothing(self):
        (self.fake / "missing").write_text("libfmt-dev\n")
        result = self.kvlab("doctor")
        self.assertEqual((result.returncode, self.cmake_calls()), (1, []))
        self.assertIn("apt-get install -y --no-install-recommends libfmt-dev\n", result.stdout)

    def test_tables_of_a_python_package_are_converted_by_python(self):
        for module in ("pandas", "pyarrow"):
            (self.fake / "modules" / f"{module}.py").parent.mkdir(exist_ok=True)
            (self.fake / "modules" / f"{module}.py").write_text("")
        (self.root / "profiles" / "aisimulate").mkdir(parents=True)
        (self.root / "profiles" / "aisimulate" / "convert.py").write_text("import sys; print(sys.argv[1:])\n")
        found = {"PYTHONPATH": str(self.fake / "modules")}
        for given in (["--format", "aisimulate"], ["--format=aisimulate"]):
            result = self.kvlab("profile", "convert", "a folder", *given, "--system", "x", **found)
            self.assertEqual((result.returncode, result.stdout), (0, "['a folder', '--system', 'x']\n"), result.stderr)
        self.assertEqual(self.cmake_calls(), [])
        self.kvlab("profile", "convert", "a", "b", "--format", "bundle", **found)
        self.assertEqual(len(self.cmake_calls()), 2)  # configured and built: the program does that one
        without = self.kvlab("profile", "convert", "--format", "aisimulate", KVLAB_PYTHON="/no/such/python")
        self.assertEqual(without.returncode, 2)
        self.assertIn("lacks pandas or pyarrow: /no/such/python -m pip install pandas pyarrow", without.stderr)

    def test_help_needs_no_build(self):
        for arguments in ((), ("--help",), ("help",)):
            result = self.kvlab(*arguments)
            self.assertEqual((result.returncode, self.cmake_calls()), (0, []))
            self.assertIn("usage: ./kvlab", result.stdout)

    def interrupted(self, command, number, whole_group):
        self.kvlab("echo")
        # A script that puts the tests into the background has them ignore interrupts, and so would what they start.
        heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        door = subprocess.Popen([str(self.root / "kvlab"), *command], env=self.env, stdout=subprocess.PIPE, text=True, start_new_session=True, preexec_fn=heard)
        self.assertEqual(door.stdout.readline(), "started\n")
        os.killpg(door.pid, number) if whole_group else door.send_signal(number)
        door.wait(timeout=10)
        door.stdout.read()  # ends when nobody is left who could write
        door.stdout.close()
        return door.returncode

    def test_bench_runs_kernels_and_simulator_and_hands_on_arguments(self):
        both = self.kvlab("bench", "--benchmark_filter=a b")
        self.assertEqual(both.stdout, "release kernel_bench --benchmark_filter=a b\nrelease sim_bench --benchmark_filter=a b\n")
        self.assertEqual(self.kvlab("bench", "sim", "-x").stdout, "release sim_bench -x\n")
        self.assertEqual(self.kvlab("bench", "kernels", "--benchmark_out=f").stdout, "release kernel_bench --benchmark_out=f\n")
        refused = self.kvlab("bench", "--benchmark_out=f")
        self.assertEqual((refused.returncode, refused.stdout), (2, ""))
        self.assertIn("./kvlab bench kernels or ./kvlab bench sim", refused.stderr)

    def test_a_filter_that_matches_nothing_in_both_programs_is_an_error(self):
        for kernel, sim, status in ((0, 0, 0), (0, 3, 0), (3, 0, 0), (3, 3, 3), (3, 2, 2), (1, 0, 1), (0, 1, 1)):
            result = self.kvlab("bench", kernel_status=str(kernel), sim_status=str(sim))
            self.assertEqual(result.returncode, status, (kernel, sim))
        self.assertEqual(self.kvlab("bench", "sim", sim_status="3").returncode, 3)
        self.assertEqual(self.kvlab("bench", "kernels", kernel_status="3").returncode, 3)

    def test_the_gpu_is_benchmarked_and_calibrated_by_the_build_with_cuda(self):
        self.script("bin/nvcc", "#!/bin/sh\n")
        self.script("bin/nvidia-smi", "#!/bin/sh\necho 9.0\n")
        self.assertEqual(self.kvlab("bench", "kernels", "--gpu=1", "-x").stdout, "cuda kernel_bench --gpu=1 -x\n")
        self.assertIn("--preset cuda -DCMAKE_CUDA_ARCHITECTURES=90a", self.cmake_calls()[0])
        self.assertEqual(self.kvlab("bench", "kernels").stdout, "cuda kernel_bench\n")  # it is there, and a GPU is
        self.assertEqual(self.kvlab("bench", "kernels", "--cpu").stdout, "release kernel_bench\n")
        self.assertEqual(self.kvlab("bench").stdout, "cuda kernel_bench\nrelease sim_bench\n")
        self.script("program", '#!/bin/sh\necho "$0" "$@"\n')
        self.assertIn("build/cuda/kvlab calibrate --gpu 0\n", self.kvlab("calibrate", "--gpu", "0").stdout)
        self.assertIn("build/release/kvlab calibrate --cpu\n", self.kvlab("calibrate", "--cpu").stdout)

    def test_backend_cuda_runs_the_build_with_cuda_where_a_gpu_is(self):
        (self.root / "build" / "cuda").mkdir(parents=True)
        self.script("bin/nvcc", "#!/bin/sh\n")
        self.script("program", "#!/bin/sh\necho \"$0\" \"$@\"\n")
        (self.fake / "gpu.yaml").write_text("host: engine\nbackend: [cpu, cuda]\n")
        (self.fake / "cpu.yaml").write_text("host: engine  # not backend: cuda\n")
        asked = [["run", "cpu.yaml", "--set", "backend=cuda"], ["trace", "record", "--backend", "cuda"], ["run", "gpu.yaml"]]
        for gpu in (True, False):
            self.script("bin/nvidia-smi", f"#!/bin/sh\necho 9.0\nexit {int(not gpu)}\n")
            for arguments in asked + [["run", "cpu.yaml"], ["trace", "record", "--backend", "cpu"]]:
                preset = "cuda" if gpu and arguments in asked else "release"
                self.assertEqual(self.kvlab(*arguments).stdout, f"{self.root}/build/{preset}/kvlab {' '.join(arguments)}\n", (gpu, arguments))

    def test_build_says_what_it_takes(self):
        result = self.kvlab("build", "--gpu")
        self.assertEqual((result.returncode, result.stderr), (2, "kvlab: 'build' takes --cuda or nothing, not '--gpu'\n"))
        self.assertEqual(self.cmake_calls(), [])

    def test_without_nvcc_it_says_what_the_gpu_needs(self):
        result = self.kvlab("calibrate", "--gpu", "0")
        if shutil.which("nvcc") is None and not Path("/usr/local/cuda/bin/nvcc").exists():
            self.assertEqual((result.returncode, self.cmake_calls()), (2, []))
            self.assertIn("no nvcc: the kernels of the GPU need the CUDA Toolkit", result.stderr)

    def test_interrupt_reaches_the_program(self):
        self.assertIn(self.interrupted(["wait"], signal.SIGINT, True), (130, -signal.SIGINT))

    def test_no_orphan_when_the_door_is_killed(self):
        self.script("program", PROGRAM.replace("  run) ", "  run) echo started; exec sleep 30;"))
        began = time.monotonic()
        self.interrupted(["run", "x"], signal.SIGKILL, False)
        self.assertLess(time.monotonic() - began, 20)


if __name__ == "__main__":
    unittest.main()
