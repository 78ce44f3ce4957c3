#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/config/params.h"

namespace kvlab {

// Lists that are values, not axes.
inline const std::set<std::string> kDataLists = {"search.rate", "search.concurrency", "search.replicas",
                                                 "search.tp",   "eval.tasks",         "eval.lengths"};

// A grid point with one seed.
struct RunSpec {
  std::string id;                          // of its inputs (input_files.h); "" until a sweep computes it
  std::shared_ptr<const Choices> choices;  // shared by all seeds
  std::uint64_t seed = 1;
  std::vector<std::string> labels;  // per axis; "" if absent
};

// Folder with runs that are also in tables and figures.
struct IncludedResults {
  std::string folder;
  std::filesystem::path path;
  std::string place;
};

struct Experiment {
  std::string file, text, name;
  std::vector<std::string> overrides;
  std::shared_ptr<const ConfigFile> config;  // ${VARIABLES} expanded
  std::vector<std::string> axes;             // paths of lists, in file order
  std::vector<RunSpec> runs;
  std::vector<IncludedResults> included;

  // From this thread's parse: threads may not share YAML nodes.
  [[nodiscard]] Params params(const RunSpec& run) const;
  // With axes and --set filled in.
  [[nodiscard]] std::string resolved(const RunSpec& run) const;
  [[nodiscard]] YAML::Node resolved_tree(const RunSpec& run) const;
  [[nodiscard]] YAML::Node expanded_tree(const RunSpec& run) const;
  // Runs from `folder`: 'paths_from' has the folders for files, so paths, labels and fingerprints stay.
  [[nodiscard]] std::string resolved_in(const std::filesystem::path& folder, const RunSpec& run) const;
  [[nodiscard]] std::string resolved_in(const std::filesystem::path& folder) const;
  [[nodiscard]] std::vector<std::uint64_t> seeds() const;  // distinct, ascending
};

// {working_folder, experiment_folder}, relative to the file.
inline constexpr const char* kPathsFrom = "paths_from";

// Not part of runs and their ids.
inline constexpr const char* kIncludeResults = "include_results";

// Relative if they share more than the root, so both can move together; else absolute.
std::string seen_from(const std::filesystem::path& base, const std::filesystem::path& path);

// In ./experiments, or the shipped ones.
std::vector<std::filesystem::path> experiment_files();

// "quickstart" or "quickstart.yaml" in experiments/; other texts stay. Throws InputError if only a similar name exists.
std::string find_experiment(const std::string& named);

// file: path or find_experiment() name. overrides: "a.b=c" of --set. Throws InputError for a bad file, list, name, seed or seeds.
Experiment load_experiment(const std::string& file, const std::vector<std::string>& overrides);
Experiment parse_experiment(const std::string& text, const std::string& file, const std::vector<std::string>& overrides);

}  // namespace kvlab
