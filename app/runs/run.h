#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "app/results/code_version.h"
#include "app/runs/experiment.h"
#include "app/runs/setup.h"

namespace kvlab {

// Thrown inside a run when the user asked to stop.
struct Interrupted {};

struct RunOptions {
  bool fast_forward = true;
  const std::atomic<bool>* stop = nullptr;              // set: the run ends with Interrupted
  std::atomic<std::uint64_t>* requests_done = nullptr;  // counts finished requests, for the progress bar
  std::function<void(const std::string&)> say = {};     // prints a line on a run that takes long; empty: silent
  bool says_progress = false;                           // such lines also while it runs
};

// The part of a run's manifest that says how its result came about.
struct RunOrigin {
  std::string input_key;  // fingerprint of everything that the result depends on, the code included
  CodeVersion code;
  std::map<std::string, std::string> inputs;  // "key: path as written" -> fingerprint
};

// The manifest's first part: format, id, seed, origin.
nlohmann::ordered_json run_manifest(const RunSpec& run, const RunOrigin& origin);

// Does one run and writes runs/ID/ in the results folder. `is_valid` is called before the run takes its place there; what it throws ends
// the run.
void execute_run(const Experiment& experiment, const RunSpec& run, const std::filesystem::path& runs, const RunOrigin& origin,
                 const RunOptions& options, const std::function<void()>& is_valid);

}  // namespace kvlab
