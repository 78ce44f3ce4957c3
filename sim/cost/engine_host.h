#pragma once

#include <cstdint>
#include <string>

#include "base/params.h"
#include "base/picoseconds.h"
#include "sim/cost/collectives.h"

namespace kvlab {

// The time that an engine's host takes for one step: it plans, prepares the inputs, launches, and handles the output. With `overlaps` it
// runs while the device computes the step before, and shows only where it is longer.
struct EngineHost {
  Picoseconds step{}, sequence{};  // sequence: for each request in the step
  bool overlaps = true;
  EngineName engine;
  std::string basis;  // "vllm 0.12.0, FILE:LINE"; "": the experiment names no engine, and its host takes no time

  [[nodiscard]] bool is_known() const { return !basis.empty(); }
  [[nodiscard]] Picoseconds of(std::int64_t requests) const { return step + sequence * requests; }
};

// Reads `engine: {vllm: {version: 0.12.0}}`. Times are in FOLDER/ENGINE.yaml, of the newest version there that is not newer than the one
// named; a version without a number ("nightly") is the newest. InputError: an engine without a file, or a version older than its first.
EngineHost read_engine_host(Params& experiment, const std::string& folder);

}  // namespace kvlab
