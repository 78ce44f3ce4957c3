#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/claims/measure.h"
#include "app/claims/verdict.h"
#include "app/runs/experiment.h"

namespace kvlab {

// One of the simulations that a claim compares: the claim's experiment with some values set.
struct ClaimRun {
  std::string name, place;             // "ours"; where the claim's file names it
  std::vector<std::string> overrides;  // "a.b=value"

  // A message on the run, with that place where it names one of the overrides alone.
  [[nodiscard]] std::string placed(const std::string& message) const;
};

// A claim's file (docs/claims.md has its keys).
struct Claim {
  std::string name, file;  // file: as given; its stem is the name
  std::string system, paper, baseline, setting, note;
  std::vector<std::string> recalled, assumed;
  Published published;
  Criterion counts = Criterion::kDirection;
  // The experiment: a file, or the text of an experiment whose lines and columns are those that it has in the claim's file.
  std::string experiment_file, experiment_text;
  std::vector<ClaimRun> runs;
  Measure measure;

  // InputError with the place in the claim's file, or in the experiment's.
  [[nodiscard]] Experiment experiment(const ClaimRun& run) const;
};

// Those of ./claims, or the shipped ones, by name.
std::vector<std::filesystem::path> claim_files();

// name: as `kvlab list claims` prints it, or a file. InputError with file:line:column on anything wrong with it, except what only its
// experiment's runs can tell.
Claim load_claim(const std::string& name);
Claim parse_claim(const std::string& text, const std::string& file);

}  // namespace kvlab
