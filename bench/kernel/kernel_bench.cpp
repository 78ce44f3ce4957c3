// Times every kernel on the GPU in a CUDA build, else on the CPU. Besides Google Benchmark's flags:
//   --warm    keep operands in place, so small ones are cached; default: rotate them (cold)
//   --gpu=N   GPU index
// --benchmark_min_time is the sampling time per case.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "base/text.h"
#include "bench/reporters.h"
#include "calibrate/cases/timing.h"

namespace kvlab {

namespace {

struct BenchRun {
  std::unique_ptr<TimedDevice> device;  // null: see why_not
  std::string why_not;
  DeviceKind kind = DeviceKind::kCpu;
  bool warm = false, lists_only = false;
  ReportFormats formats;
  TimingPlan plan;
  DeviceRates rates;
};

void count(benchmark::State& state, const BenchRun& run, const PreparedCase& prepared, const Timing& t) {
  const double bytes_per_s = static_cast<double>(prepared.bytes()) / t.seconds,
               flops_per_s = static_cast<double>(prepared.flops()) / t.seconds;
  state.counters["bytes_per_s"] = bytes_per_s;
  state.counters["flops_per_s"] = flops_per_s;
  if (run.rates.copy_bytes_per_s > 0) state.counters["frac_of_copy_bw"] = bytes_per_s / run.rates.copy_bytes_per_s;
  if (run.rates.gemm_flops_per_s > 0) state.counters["frac_of_gemm_rate"] = flops_per_s / run.rates.gemm_flops_per_s;
  state.counters["spread"] = t.spread_frac;
  state.counters["samples"] = static_cast<double>(t.samples);
  state.counters["discarded"] = static_cast<double>(t.discarded);
  state.counters["copies"] = static_cast<double>(prepared.copies());
}

void run_case(benchmark::State& state, BenchRun& run, const KernelFamily& family, const Shape& shape) {
  if (run.device == nullptr) return state.SkipWithError(run.why_not.c_str());
  try {
    const Rotation rotation = run.warm ? Rotation{} : cold_rotation(*run.device);
    const std::unique_ptr<PreparedCase> prepared = family.prepare(*run.device, shape, rotation);
    if (!prepared->matches()) return state.SkipWithError("wrong result");
    for (auto _ : state) {
      const Timing t = time_case(*prepared, *run.device, run.plan);
      state.SetIterationTime(t.seconds);
      count(state, run, *prepared, t);
    }
  } catch (const std::exception& e) {
    state.SkipWithError(e.what());
  }
}

void register_cases(BenchRun& run) {
  for (const KernelFamily& family : kernel_families()) {
    if (family.device != run.kind) continue;
    for (const Shape& shape : family.shapes) {
      benchmark::RegisterBenchmark(family.case_name(shape).c_str(),
                                   [&run, &family, shape](benchmark::State& state) { run_case(state, run, family, shape); })
          ->UseManualTime()
          ->Iterations(1)
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

// Removes our own arguments.
bool read_arguments(int& argc, char** argv, BenchRun& run, int& gpu) {
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    long long number = 0;
    if (word == "--warm") {
      run.warm = true;
    } else if (word.starts_with("--gpu=")) {
      if (!parse_integer(word.substr(6), number) || number < 0 || number > 1024) return false;
      gpu = static_cast<int>(number);
    } else {
      if (word.starts_with("--benchmark_min_time=")) run.plan.seconds = std::atof(word.c_str() + 21);
      if (word.starts_with("--benchmark_list_tests") && !word.ends_with("=false")) run.lists_only = true;
      run.formats.read(word);
      argv[kept++] = argv[i];
    }
  }
  argc = kept;
  return true;
}

void open_device(BenchRun& run, int gpu) {
  run.kind = cuda_backend() == CudaBackend::kNone ? DeviceKind::kCpu : DeviceKind::kGpu;
  try {
    run.device = run.kind == DeviceKind::kCpu ? make_cpu_device() : make_gpu_device(gpu);
  } catch (const CudaError& e) {
    run.why_not = e.what();
  }
}

void add_context(BenchRun& run) {
  benchmark::AddCustomContext("commit", KVLAB_COMMIT);
  benchmark::AddCustomContext("build_type", is_debug_build() ? "debug" : "release");
  if (run.device == nullptr) return;
  benchmark::AddCustomContext("device", run.device->name());
  if (run.device->cuda() != nullptr) {
    const GpuInfo& gpu = run.device->cuda()->gpu();
    benchmark::AddCustomContext("driver", gpu.driver);
    benchmark::AddCustomContext("clock_ghz", std::to_string(gpu.clock_ghz));
    benchmark::AddCustomContext("memory_clock_ghz", std::to_string(gpu.memory_clock_ghz));
  }
  const Rotation rotation = run.warm ? Rotation{} : cold_rotation(*run.device);
  benchmark::AddCustomContext("cache",
                              run.warm ? "warm" : "cold: operands rotate through " + std::to_string(rotation.bytes >> 20) + " MiB");
  run.rates = measure_rates(*run.device, run.kind == DeviceKind::kCpu                        ? "f32"
                                         : run.device->cuda()->gpu().compute_capability < 80 ? "f16"
                                                                                             : "bf16");
  benchmark::AddCustomContext("copy_bytes_per_s", std::to_string(run.rates.copy_bytes_per_s));
  benchmark::AddCustomContext("gemm_flops_per_s", std::to_string(run.rates.gemm_flops_per_s));
}

// Names are op/format/shape, without run options.
template <class Reporter>
class PlainNames final : public Reporter {
 public:
  using Run = benchmark::BenchmarkReporter::Run;
  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<Run> plain = runs;
    for (Run& run : plain) run.run_name.iterations.clear(), run.run_name.time_type.clear();
    Reporter::ReportRuns(plain);
  }
  bool ReportContext(const benchmark::BenchmarkReporter::Context& context) override {
    benchmark::BenchmarkReporter::Context wide = context;
    wide.name_field_width = std::min<std::size_t>(context.name_field_width, 56);
    return Reporter::ReportContext(wide);
  }
};

std::size_t run_benchmarks(const ReportFormats& formats) {
  PlainNames<benchmark::ConsoleReporter> console;
  PlainNames<FiniteNumbers<benchmark::JSONReporter>> json, file;
  benchmark::BenchmarkReporter* display = &console;
  if (formats.shows_json) display = &json;
  return benchmark::RunSpecifiedBenchmarks(display, formats.writes_file ? &file : nullptr);
}

int bench_main(int argc, char** argv) {
  BenchRun run;
  int gpu = 0;
  run.plan.seconds = 0.2;
  if (!read_arguments(argc, argv, run, gpu)) {
    std::cerr << "kernel_bench: --gpu= needs the number of a GPU\n";
    return 2;
  }
  run.plan.warm_up_seconds = run.plan.seconds;
  if (run.formats.writes_file && is_debug_build()) {
    std::cerr << "kernel_bench: a debug build writes no numbers to a file; use build/release or build/cuda\n";
    return 2;
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  open_device(run, gpu);
  const char* require = std::getenv("KVLAB_REQUIRE_GPU");
  if (run.device == nullptr && require != nullptr && std::string(require) == "1") {
    std::cerr << "kernel_bench: KVLAB_REQUIRE_GPU=1, and " << run.why_not << "\n";
    return 1;
  }
  if (!run.lists_only) add_context(run);
  register_cases(run);
  return status_of_matches(run_benchmarks(run.formats));
}

}  // namespace

}  // namespace kvlab

int main(int argc, char** argv) { return kvlab::bench_main(argc, argv); }
