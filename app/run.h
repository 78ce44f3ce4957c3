#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <string>

#include "app/experiment.h"
#include "app/setup.h"

namespace kvlab {

// Thrown inside a run when the user asked to stop.
struct Interrupted {};

struct RunOptions {
  bool fast_forward = true;
  const std::atomic<bool>* stop = nullptr;              // set: the run ends with Interrupted
  std::atomic<std::uint64_t>* requests_done = nullptr;  // counts finished requests, for the progress bar
};

// Does one run and writes runs/ID/ in the results folder. input_key: fingerprint of everything the result depends on; kept in
// the run's manifest, with the credibility label.
void execute_run(const Experiment& experiment, const RunSpec& run, const std::filesystem::path& runs, const std::string& input_key,
                 const RunOptions& options);

}  // namespace kvlab
