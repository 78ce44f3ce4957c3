#include "calibrate/profile_folder.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>

#include "base/config/config_file.h"
#include "base/config/params.h"
#include "base/config/spec_file.h"
#include "base/read_file.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;

void write_whole(const fs::path& file, const std::string& text) {
  std::error_code error;
  fs::create_directories(file.parent_path(), error);
  write_file(file, text);
}

// CPU kernels compute in float32.
std::string as_float32(const ModelSpec& model) {
  YAML::Node root = YAML::Clone(load_config(model.file)->root);
  root["torch_dtype"] = "float32";
  root["kv_cache_dtype"] = "float32";
  root.remove("quantization_config");
  return "# " + model.name + " as it was measured on a CPU: in float32.\n" + YAML::Dump(root) + "\n";
}

// From the fastest measurements.
struct PeakRates {
  double bytes_per_s = 0, flops_per_s = 0;
};

PeakRates peaks_of(const CalibratedFolder& f) {
  PeakRates peak{f.facts.copy_bytes_per_s, f.facts.gemm_flops_per_s};
  for (const CalibrationTable& table : calibration_tables(f.model, f.facts.kind, f.plan.limits)) {
    if (table.kind == CalibrationTable::Kind::kCopy) continue;
    for (const auto& e : f.measurements.of(table.name)) {
      const double beyond_cache = static_cast<double>(std::max<std::int64_t>(0, e.measured.bytes - f.facts.cache_bytes));
      peak.bytes_per_s = std::max(peak.bytes_per_s, beyond_cache / e.measured.seconds);
      peak.flops_per_s = std::max(peak.flops_per_s, static_cast<double>(e.measured.flops) / e.measured.seconds);
    }
  }
  return {std::max(peak.bytes_per_s, 1e9), std::max(peak.flops_per_s, 1e9)};
}

double link_rate(const CalibratedFolder& f) {
  double rate = 0;
  for (const auto& e : f.measurements.of(std::string(name_of(OpId::kHostToDevice))))
    rate = std::max(rate, static_cast<double>(e.measured.bytes) / e.measured.seconds);
  return rate > 0 ? rate : f.facts.copy_bytes_per_s;
}

// fp32 is priced at half the fp16 rate, so a CPU's fp16 rate is twice the measured one.
std::string hardware_text(const CalibratedFolder& f) {
  const PeakRates peak = peaks_of(f);
  const bool is_cpu = f.facts.kind == DeviceKind::kCpu;
  const auto share = [](double part, double whole) { return std::clamp(part / whole, 0.01, 1.0); };
  std::string name = f.facts.name;
  std::replace(name.begin(), name.end(), '"', '\'');
  return fmt::format(
      "# Measured, not from a datasheet: the rates are the highest that any measurement of this calibration reached.\n"
      "name: \"{}\"\nsource: \"kvlab calibrate\"\nmemory_bytes: {}\nmemory_bandwidth_bytes_per_s: {:.6g}\nl2_bytes: {}\nfp16_flops: "
      "{:.6g}\n"
      "bf16_flops: {:.6g}\npcie_bytes_per_s: {:.6g}\nlaunch_ns: {:.0f}\nbandwidth_frac: {:.4f}\nflops_frac: {:.4f}\n",
      name, f.facts.memory_bytes, peak.bytes_per_s, f.facts.cache_bytes, (is_cpu ? 2 : 1) * peak.flops_per_s,
      (is_cpu ? 2 : 1) * peak.flops_per_s, std::max(1e8, link_rate(f)), f.facts.launch_seconds * 1e9,
      share(f.facts.copy_bytes_per_s, peak.bytes_per_s), share(f.facts.gemm_flops_per_s, peak.flops_per_s));
}

std::string held_out_text(const std::vector<HeldOut>& held_out) {
  std::string text = "table,a,b,measured_ns,predicted_ns,error_frac,footing\n";
  for (const HeldOut& h : held_out) {
    const char* const footing = h.footing == Footing::kInside         ? "inside"
                                : h.footing == Footing::kInterpolated ? "interpolated"
                                                                      : "extrapolated";
    text += fmt::format("{},{},{},{:.3f},{:.3f},{:.5f},{}\n", h.table, h.at[0], h.at[1], h.measured_ps * 1e-3, h.predicted_ps * 1e-3,
                        h.error_frac(), footing);
  }
  return text;
}

std::string lower_without_spaces(const std::string& text) {
  std::string out;
  for (const char c : text)
    if (c != ' ') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

bool names_card(const std::string& device, const std::string& stem) {
  for (std::size_t begin = 0; begin <= stem.size();) {
    const std::size_t end = std::min(stem.find('-', begin), stem.size());
    if (device.find(stem.substr(begin, end - begin)) == std::string::npos) return false;
    begin = end + 1;
  }
  return true;
}

void fill_meta(const CalibratedFolder& f, Profile& p) {
  p.device = f.facts.name, p.model = f.model.name, p.hardware = f.plan.hardware.empty() ? "measured" : f.plan.hardware;
  p.measured = f.plan.measured, p.source = f.plan.source;
  p.host_time = ps_of_s(f.facts.round_trip_seconds);
  p.options["seed"] = std::to_string(f.plan.seed);
  p.options["measurements"] = std::to_string(f.measurements.size());
  p.options["stall_frac"] = fmt::format("{:.4f}", f.measurements.stall_frac());
  p.options["copy_bytes_per_s"] = fmt::format("{:.4g}", f.facts.copy_bytes_per_s);
  p.options["gemm_flops_per_s"] = fmt::format("{:.4g}", f.facts.gemm_flops_per_s);
  p.options["launch_ns"] = fmt::format("{:.0f}", f.facts.launch_seconds * 1e9);
  for (const HeldOutError& e : f.errors)
    p.options["heldout_" + e.table] = fmt::format("{} points, median {:.4f}, p95 {:.4f}", e.points, e.median_frac, e.p95_frac);
}

}  // namespace

std::string known_hardware(const std::string& device, std::int64_t memory_bytes) {
  const std::string wanted = lower_without_spaces(device), folder = profiles_folder() + "/hardware";
  std::string best;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const std::string stem = entry.path().stem().string();
    if (stem.size() <= best.size() || !names_card(wanted, stem)) continue;
    const auto memory = static_cast<double>(load_hardware_spec(stem, folder).memory_bytes);
    if (std::abs(static_cast<double>(memory_bytes) / memory - 1) < 0.15) best = stem;
  }
  return best;
}

void write_profile_folder(const CalibratedFolder& f, Profile profile) {
  const fs::path out = f.plan.out;
  fill_meta(f, profile);
  std::error_code error;
  for (const char* const made : {"tp1", "models", "hardware"}) fs::remove_all(out / made, error);
  fs::remove(out / "meta.yaml", error);
  ModelSpec model = f.model;
  if (f.facts.kind == DeviceKind::kCpu) {
    write_whole(out / "models" / (f.model.name + ".yaml"), as_float32(f.model));
    model = load_model_spec((out / "models" / (f.model.name + ".yaml")).string(), "");
  }
  if (f.plan.hardware.empty()) write_whole(out / "hardware" / "measured.yaml", hardware_text(f));
  const std::string hardware = f.plan.hardware.empty() ? (out / "hardware" / "measured.yaml").string() : f.plan.hardware;
  const HardwareSpec spec = load_hardware_spec(hardware, profiles_folder() + "/hardware");
  for (const LintFinding& finding : lint_profile(profile, model, spec))
    if (finding.severity == LintFinding::Severity::kError)
      throw InputError(
          f.plan.out + ": " + finding.text +
          "; the measurements are kept in measurements.csv, no profile was written. The same command measures again; a time that "
          "others of the same point do not bear out is then left out");
  write_kvlab_profile(profile, f.plan.out);
  write_whole(out / "heldout.csv", held_out_text(f.held_out));
}

}  // namespace kvlab
