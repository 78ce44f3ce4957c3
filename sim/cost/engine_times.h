#pragma once

#include <cstdint>
#include <string>

#include "base/config/params.h"
#include "base/picoseconds.h"
#include "sim/cost/collectives.h"

namespace kvlab {

// By engine version. 0 if no engine is named.
struct EngineTimes {
  EngineName engine;
  std::string basis;  // "vllm 0.12.0 (0.6.0 of FILE)", or ""

  // CPU time to plan, prepare inputs, launch and handle output. With `overlaps` only the excess over the previous step's device time
  // counts.
  struct Host {
    Picoseconds step{}, sequence{};  // sequence: per request
    bool overlaps = true;
  } host;

  // Small kernels and gaps outside the model's operations.
  struct Device {
    Picoseconds step{}, sequence{};             // sequence: per row with logits
    Picoseconds layer{}, qk_norm{}, experts{};  // per layer; extra with query-key norm, experts
  } device;

  [[nodiscard]] bool is_known() const { return !basis.empty(); }
  [[nodiscard]] Picoseconds host_of(std::int64_t requests) const { return host.step + host.sequence * requests; }
};

// Reads `engine: {vllm: {version: 0.12.0}}` with times from FOLDER/ENGINE.yaml: the newest version not above it. "nightly" is the newest.
// Throws InputError if missing.
EngineTimes read_engine_times(Params& experiment, const std::string& folder);

}  // namespace kvlab
