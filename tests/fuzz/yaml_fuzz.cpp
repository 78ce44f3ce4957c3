#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "app/experiment.h"
#include "app/setup.h"
#include "base/error.h"

// Bytes as an experiment: parsed, expanded and read up to the point where a simulation would start. Whatever they are, the
// only way out but success is InputError.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool ready = [] {
    ::setenv("KVLAB_PROFILES", KVLAB_SOURCE_DIR "/profiles", 1);
    return true;
  }();
  static_cast<void>(ready);
  try {
    const kvlab::Experiment experiment = kvlab::parse_experiment(std::string(reinterpret_cast<const char*>(data), size), "fuzz.yaml", {});
    constexpr std::size_t kMostRuns = 4;
    for (std::size_t i = 0; i < experiment.runs.size() && i < kMostRuns; ++i) {
      kvlab::Params p = experiment.params(experiment.runs[i]);
      kvlab::read_run_plan(p, experiment.runs[i].seed);
      static_cast<void>(experiment.resolved(experiment.runs[i]));
    }
  } catch (const kvlab::InputError&) {
  }
  return 0;
}
