#pragma once

#include <cstdint>
#include <string>

#include "base/params.h"
#include "base/picoseconds.h"
#include "sim/cost/collectives.h"

namespace kvlab {

// The times of a step that belong to an engine's version, not to a kernel of the model. All are 0 where the experiment names no engine.
struct EngineTimes {
  EngineName engine;
  std::string basis;  // "vllm 0.12.0 (0.6.0 of FILE)"; "": none

  // Host time: it plans, prepares the inputs, launches, and handles the output. With `overlaps` it does so while the device computes the
  // step before, and only the excess over the device time shows.
  struct Host {
    Picoseconds step{}, sequence{};  // sequence: for each request in the step
    bool overlaps = true;
  } host;

  // Device time of small kernels and gaps that belong to no operation of the model.
  struct Device {
    Picoseconds step{}, sequence{};             // sequence: for each row that has logits
    Picoseconds layer{}, qk_norm{}, experts{};  // of each layer; more where it normalizes queries and keys, and where it has experts
  } device;

  [[nodiscard]] bool is_known() const { return !basis.empty(); }
  [[nodiscard]] Picoseconds host_of(std::int64_t requests) const { return host.step + host.sequence * requests; }
};

// Reads `engine: {vllm: {version: 0.12.0}}`. Times are in FOLDER/ENGINE.yaml, of the newest version there that is not newer than the one
// named; a version without a number ("nightly") is the newest. InputError: an engine without a file, or a version older than its first.
EngineTimes read_engine_times(Params& experiment, const std::string& folder);

}  // namespace kvlab
