#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/claims/measure.h"
#include "app/claims/verdict.h"
#include "app/runs/sweep/experiment.h"

namespace kvlab {

// The claim's experiment with other values.
struct ClaimRun {
  std::string name, place;  // "ours"; its place in the claim's file
  std::vector<std::string> overrides;

  [[nodiscard]] std::string placed(const std::string& message) const;
};

// Keys: docs/claims.md.
struct Claim {
  std::string name, file;  // as given
  std::string system, paper, baseline, setting, note;
  std::vector<std::string> recalled, assumed;
  Published published;
  Criterion counts = Criterion::kDirection;
  // A file, or text with the lines and columns of the claim's file.
  std::string experiment_file, experiment_text;
  std::vector<ClaimRun> runs;
  Measure measure;

  // Throws InputError.
  [[nodiscard]] Experiment experiment(const ClaimRun& run) const;
};

// In ./claims, or the shipped ones, by name.
std::vector<std::filesystem::path> claim_files();

// name: claim or file. Throws InputError, except for errors that only the runs show.
Claim load_claim(const std::string& name);
Claim parse_claim(const std::string& text, const std::string& file);

}  // namespace kvlab
