#include <fmt/format.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/text.h"
#include "sim/cost/hardware_spec.h"

namespace kvlab {

namespace {

EngineTimes read_version(Params& version) {
  EngineTimes times;
  Params host = version.child("host", "host"), device = version.child("device", "device");
  const auto us = [](Params& p, const char* key, const char* meaning) {
    return round_ps(p.optional<double>(key, 0, 0, 1e6, meaning) * 1e6);
  };
  times.host.step = us(host, "step_us", "host time of a step");
  times.host.sequence = us(host, "sequence_us", "host time of each request in it");
  times.host.overlaps = host.flag("overlaps", true, "the host works while the device computes the step before");
  times.device.step = us(device, "step_us", "device time of a step beside its operations");
  times.device.sequence = us(device, "sequence_us", "the same for each row that has logits");
  times.device.layer = us(device, "layer_us", "the same for each layer");
  times.device.qk_norm = us(device, "qk_norm_us", "the same for each layer that normalizes queries and keys");
  times.device.experts = us(device, "experts_us", "the same for each layer with experts");
  version.reject_unread();
  return times;
}

}  // namespace

EngineTimes read_engine_times(Params& experiment, const std::string& folder) {
  auto [engine, own] = experiment.named(
      "engine", "none",
      "engine whose own times a step has beside its operations, a name in profiles/engines: {vllm: {version}}; none: there are none");
  const std::string version = own.text("version", "", "of the engine; by default the newest in its file");
  own.reject_unread();
  if (engine == "none" || experiment.is_describing()) return {};
  const std::string file = [&, &name = engine] {
    try {
      return find_spec_file(name, folder, "engine");
    } catch (const InputError& e) {
      experiment.fail_at("engine", e.what());
    }
  }();
  Params p(shared_config(file), std::make_shared<Choices>(), "engine '" + file + "'");
  Params versions = p.child("versions", "versions");
  const std::vector<int> wanted = version_numbers(version);
  std::optional<std::vector<int>> best;
  std::string first;
  EngineTimes times;
  for (const std::string& key : versions.keys()) {
    Params one = versions.child(key, "version " + key);
    const EngineTimes read = read_version(one);
    const std::vector<int> numbers = version_numbers(key);
    if (first.empty()) first = key;
    if ((!wanted.empty() && numbers > wanted) || (best && numbers < *best)) continue;
    best = numbers;
    times = read;
    times.engine = {engine, version.empty() ? key : version};
    times.basis = fmt::format("{} {} ({} of {})", engine, version.empty() ? "newest" : version, key, file);
  }
  p.text("source", "where the times come from");
  p.reject_unread();
  if (!best) experiment.fail_at("engine", fmt::format("{} has no host times for {} {}: the first are of {}", file, engine, version, first));
  return times;
}

}  // namespace kvlab
