#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "app/runs/kinds/run_kind.h"
#include "app/runs/sweep/experiment.h"
#include "base/error.h"
#include "policies/kv/recipe/recipe.h"

namespace {

// Checks the file that a run writes so that it can be run again.
void check_round_trip(const std::string& resolved) {
  const kvlab::Experiment again = kvlab::parse_experiment(resolved, "resolved.yaml", {});
  if (again.resolved(again.runs.at(0)) != resolved) __builtin_trap();
}

// Parsed, expanded and read up to the point where a simulation would start.
void read_experiment(const std::string& text) {
  const kvlab::Experiment experiment = kvlab::parse_experiment(text, "fuzz.yaml", {});
  kvlab::RunKinds kinds;
  constexpr std::size_t kMostRuns = 4;
  for (std::size_t i = 0; i < experiment.runs.size() && i < kMostRuns; ++i) {
    kvlab::Params p = experiment.params(experiment.runs[i]);
    static_cast<void>(kinds.read(p, experiment.runs[i].seed));
    check_round_trip(experiment.resolved(experiment.runs[i]));
  }
}

// The parts of a KV policy: every one that the text names is made.
void read_parts(const std::string& text) {
  kvlab::Params p = kvlab::Params::from_text(text, "kv_policy");
  static_cast<void>(kvlab::read_recipe(p));
}

}  // namespace

// Bytes as an experiment and as a KV policy. Whatever they are, the only way out but success is InputError.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool ready = [] {
    ::setenv("KVLAB_PROFILES", KVLAB_SOURCE_DIR "/profiles", 1);
    return true;
  }();
  static_cast<void>(ready);
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const auto read : {read_experiment, read_parts}) {
    try {
      read(text);
    } catch (const kvlab::InputError&) {
    }
  }
  return 0;
}
