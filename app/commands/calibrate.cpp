#include <fmt/chrono.h>
#include <fmt/format.h>

#include <cctype>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "app/commands/command.h"
#include "app/results/results.h"
#include "app/runs/accuracy/served_model.h"
#include "app/runs/sweep/progress.h"
#include "base/config/spec_file.h"
#include "base/error.h"
#include "base/text.h"
#include "calibrate/calibration.h"
#include "calibrate/cases/timing.h"
#include "calibrate/profile_folder.h"
#include "calibrate/recipe_ops.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

struct CalibrateCommand {
  bool cpu = false;
  std::optional<int> gpu;
  double minutes = 10;
  std::string model;     // "": llama-3.1-8b on a GPU, the probe on the CPU
  std::string hardware;  // "": the datasheet of the GPU's name, else measured rates
  std::string out;       // "": profiles/DEVICE
  std::uint64_t seed = 1;
  std::vector<std::string> kv_policies;  // their operations are timed
};

void check(const CalibrateCommand& c) {
  if (c.cpu == c.gpu.has_value()) throw InputError("calibrate needs --cpu or --gpu N, one of them");
  constexpr double kMost = 24 * 60;
  if (!(c.minutes > 0 && c.minutes <= kMost))
    throw InputError(
        fmt::format("--minutes {} is outside (0, 1440]; about 10 give a GPU's profile, 0.2 a rough one of the CPU", c.minutes));
}

std::unique_ptr<TimedDevice> open_device(const CalibrateCommand& c) {
  if (c.cpu) return make_cpu_device();
  try {
    return make_gpu_device(*c.gpu);
  } catch (const CudaError& e) {
    throw InputError(fmt::format("--gpu {}: {}", *c.gpu, e.what()));
  }
}

// "NVIDIA H100 80GB HBM3" -> "nvidia-h100-80gb-hbm3".
std::string folder_name(const std::string& device) {
  std::string name;
  for (const char c : device) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) != 0)
      name += static_cast<char>(std::tolower(u));
    else if (!name.empty() && name.back() != '-')
      name += '-';
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name;
}

std::vector<Recipe> recipes_of(const CalibrateCommand& c, const ModelSpec& model) {
  std::vector<std::string> names;
  for (const std::string& name : c.kv_policies) {
    const std::vector<std::string> meant =
        name == "all" ? covering_recipes(c.cpu ? "cpu" : "cuda", engine_shape(model)) : std::vector{name};
    names.insert(names.end(), meant.begin(), meant.end());
  }
  std::vector<Recipe> recipes;
  for (const std::string& name : names) recipes.push_back(timed_recipe(named_recipe(name)));
  return recipes;
}

CalibrationPlan plan_of(const CalibrateCommand& c, const TimedDevice& device, const ModelSpec& model) {
  CalibrationPlan plan;
  plan.seconds = c.minutes * 60, plan.seed = c.seed;
  plan.hardware = c.hardware.empty() && !c.cpu ? known_hardware(device.name(), device.memory_bytes()) : c.hardware;
  const std::string name = c.cpu ? "cpu" : plan.hardware.empty() ? folder_name(device.name()) : plan.hardware;
  plan.out = c.out.empty() ? "profiles/" + name : c.out;
  while (plan.out.size() > 1 && plan.out.ends_with('/')) plan.out.pop_back();
  plan.source = "kvlab calibrate " + program_version();
  plan.measured = fmt::format("{:%Y-%m-%d}", fmt::localtime(std::time(nullptr)));
  plan.limits = default_limits(model, device.kind(), device.memory_bytes());
  plan.recipes = recipes_of(c, model);
  return plan;
}

void report(const CalibrationPlan& plan, const CalibrationResult& result, std::ostream& out) {
  const bool is_good = result.failure.empty();
  out << (is_good ? "calibration passed: the held-out error and the spread of samples meet their goals\n"
                  : "calibration FAILED: " + result.failure + "\n");
  out << fmt::format("{:<20} {:>7} {:>12} {:>9}\n", "held-out error", "points", "median_frac", "p95_frac");
  for (const HeldOutError& e : result.errors)
    out << fmt::format("{:<20} {:>7} {:>12.4f} {:>9.4f}\n", e.table, e.points, e.median_frac, e.p95_frac);
  if (!result.missing.empty())
    out << "no kernel here for " << join(result.missing, ", ") << ": 'missing: roofline' in an experiment prices them by the roofline\n";
  out << fmt::format("wrote {}: {} measurements, hash {}\n", plan.out, result.measurements, profile_hash(read_kvlab_profile(plan.out, 1)));
  if (is_good)
    out << fmt::format("use it with: profile: {{kvlab: {{path: {}{}}}}}\n", plan.out, result.missing.empty() ? "" : ", missing: roofline");
  else
    out << "measure again on an idle machine: the same command with more --minutes goes on from these measurements, another --out begins "
           "anew. A run that uses this profile says that it failed\n";
}

int calibrate_device(const CalibrateCommand& c, std::ostream& out, std::ostream& err) {
  check(c);
  ModelSpec model = load_model_spec(!c.model.empty() ? c.model : c.cpu ? "probe" : "llama-3.1-8b", profiles_folder() + "/models");
  const std::unique_ptr<TimedDevice> device = open_device(c);
  constexpr int kFirstWithBf16 = 80;
  if (device->cuda() != nullptr && device->cuda()->gpu().compute_capability < kFirstWithBf16) model.dtype = model.kv_dtype = Dtype::kFp16;
  const CalibrationPlan plan = plan_of(c, *device, model);
  // Fail before measuring.
  static_cast<void>(calibration_tables(model, device->kind(), plan.limits));
  for (const Recipe& recipe : plan.recipes) require_timed(c.cpu ? "cpu" : "cuda", recipe, engine_shape(model));
  if (!plan.hardware.empty()) static_cast<void>(load_hardware_spec(plan.hardware, profiles_folder() + "/hardware"));
  if (is_debug_build()) throw InputError("this is a debug build, whose times mean nothing; calibrate with build/release or build/cuda");
  err << fmt::format("calibrate: {} for {}, {:g} min, seed {}, into {}\n", device->name(), model.name, c.minutes, c.seed, plan.out);
  const StopSignals signals;
  const std::unique_ptr<Meter> meter = make_device_meter(*device, model);
  const CalibrationResult result = calibrate(model, *meter, plan, stop_requested(), err);
  if (!result.is_complete) {
    err << fmt::format("calibrate: stopped; {} measurements are kept in {}, and the same command goes on from them\n", result.measurements,
                       plan.out);
    return 130;
  }
  report(plan, result, out);
  return stop_requested() ? 130 : 0;
}

}  // namespace

void add_calibrate_command(CLI::App& app, Command& chosen) {
  CLI::App* one = app.add_subcommand("calibrate", "measure this machine's kernels and write a profile that simulations can use");
  auto& c = arguments_of<CalibrateCommand>(*one);
  CLI::Option_group* device = one->add_option_group("device");
  device->add_flag("--cpu", c.cpu, "the CPU, with the CPU's kernels");
  device->add_option("--gpu", c.gpu, "the GPU of this number; needs a build with CUDA");
  device->require_option(1);
  one->add_option("--minutes", c.minutes, "how long to measure; default: 10");
  one->add_option("--model", c.model, "a name in profiles/models or a config.json; default: llama-3.1-8b, with --cpu the probe")
      ->check(offers(Offer::kNames, "models"))
      ->check(offers(Offer::kFiles));
  one->add_option("--hardware", c.hardware, "datasheet to check against: a name in profiles/hardware; default: by the GPU's name")
      ->check(offers(Offer::kNames, "hardware"));
  one->add_option("--out", c.out, "folder to write; default: profiles/NAME. A folder of the same device, model and seed is continued")
      ->check(offers(Offer::kFolders));
  one->add_option("--seed", c.seed, "of the points that are held out to state the error; default: 1")->check(whole_number());
  one->add_option(
         "--kv-policy", c.kv_policies,
         "recipes whose operations are timed too, as the engine calls them; all: a few recipes that call every operation. Operations "
         "without a table are priced by the roofline")
      ->check(offers(Offer::kNames, "recipes"));
  choose(one, chosen, c, calibrate_device);
}

}  // namespace kvlab
