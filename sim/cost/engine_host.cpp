#include "sim/cost/engine_host.h"

#include <fmt/format.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/config_file.h"
#include "base/spec_file.h"
#include "base/version.h"

namespace kvlab {

namespace {

constexpr double kMaxUs = 1e6;

Picoseconds of_us(double us) { return round_ps(us * 1e6); }

EngineHost read_version(Params& version) {
  EngineHost host;
  host.step = of_us(version.required<double>("step_us", 0, kMaxUs, "host time of a step"));
  host.sequence = of_us(version.required<double>("sequence_us", 0, kMaxUs, "host time of each request in it"));
  host.overlaps = version.flag("overlaps", true, "the host works while the device computes the step before");
  version.text("source", "where the times come from");
  version.reject_unread();
  return host;
}

}  // namespace

EngineHost read_engine_host(Params& experiment, const std::string& folder) {
  auto [engine, own] = experiment.named(
      "engine", "none", "whose host plans and launches the steps, a name in profiles/engines: {vllm: {version}}; none: it takes no time");
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
  const std::shared_ptr<const ConfigFile> config = load_config(file);
  Params p(config, std::make_shared<Choices>(), "engine '" + file + "'");
  Params versions = p.child("versions", "versions");
  const std::vector<int> wanted = version_numbers(version);
  std::optional<std::vector<int>> best;
  std::string first;
  EngineHost host;
  for (const std::string& key : versions.keys()) {
    Params one = versions.child(key, "version " + key);
    const EngineHost read = read_version(one);
    const std::vector<int> numbers = version_numbers(key);
    if (first.empty()) first = key;
    if ((!wanted.empty() && numbers > wanted) || (best && numbers < *best)) continue;
    best = numbers;
    host = read;
    host.engine = {engine, version.empty() ? key : version};
    host.basis = fmt::format("{} {} ({} of {})", engine, version.empty() ? "newest" : version, key, file);
  }
  p.reject_unread();
  if (!best) experiment.fail_at("engine", fmt::format("{} has no host times for {} {}: the first are of {}", file, engine, version, first));
  return host;
}

}  // namespace kvlab
