#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/params.h"

namespace kvlab {

// Lists that are values, not axes of a sweep.
inline const std::set<std::string> kDataLists = {"search.rate", "search.concurrency", "search.replicas",
                                                 "search.tp",   "eval.tasks",         "eval.lengths"};

// One run of an experiment: a point of the grid that the lists span, for one seed.
struct RunSpec {
  std::string id;                          // identifies its inputs (app/runs/input_files.h); "" until a sweep has computed it
  std::shared_ptr<const Choices> choices;  // one for all seeds
  std::uint64_t seed = 1;
  std::vector<std::string> labels;  // one per axis of the experiment, "" where the run does not have it
};

// A results folder whose runs the tables and figures of this experiment have too.
struct IncludedResults {
  std::string folder;  // as written
  std::filesystem::path path;
  std::string place;  // in the file, for errors
};

// An experiment file, the values set on the command line, and the runs it spans.
struct Experiment {
  std::string file, text, name;
  std::vector<std::string> overrides;
  std::shared_ptr<const ConfigFile> config;  // ${VARIABLES} expanded
  std::vector<std::string> axes;             // paths of its lists, in the order of the file
  std::vector<RunSpec> runs;
  std::vector<IncludedResults> included;

  // The run's parameters over a parse of this thread's own, so that runs in parallel share no YAML nodes.
  [[nodiscard]] Params params(const RunSpec& run) const;
  // The run as YAML: the file with its axes filled in and the values set on the command line.
  [[nodiscard]] std::string resolved(const RunSpec& run) const;
  [[nodiscard]] YAML::Node resolved_tree(const RunSpec& run) const;
  [[nodiscard]] YAML::Node expanded_tree(const RunSpec& run) const;  // the same with the values of environment variables
  // The same as YAML that runs by itself in `folder`: 'paths_from' names, as seen from there, the folders in which this experiment looks
  // for files. So paths in it stay as they were written, and with them labels and fingerprints.
  [[nodiscard]] std::string resolved_in(const std::filesystem::path& folder, const RunSpec& run) const;
  // The whole experiment in this form, its axes left as lists.
  [[nodiscard]] std::string resolved_in(const std::filesystem::path& folder) const;
  [[nodiscard]] std::vector<std::uint64_t> seeds() const;  // distinct, ascending
};

// The key for the folders in which an experiment's files are looked for: {working_folder, experiment_folder}, relative to the file.
inline constexpr const char* kPathsFrom = "paths_from";

// The key for results folders of other experiments. It changes no run, so runs and their ids do not know it.
inline constexpr const char* kIncludeResults = "include_results";

// `path` as seen from the folder `base`: relative where they share more than the root, so that both can be moved together; else absolute.
std::string seen_from(const std::filesystem::path& base, const std::filesystem::path& path);

// The experiments that are known by name: those of ./experiments, or the shipped ones.
std::vector<std::filesystem::path> experiment_files();

// "quickstart" or "quickstart.yaml", as `kvlab list experiments` prints them, is the file in experiments/. Any other text stays. InputError
// with the names that may be meant where there is no such file.
std::string find_experiment(const std::string& named);

// file: a path, or the name of one of experiment_files(). overrides: "a.b=c" as given with --set. Throws InputError on anything wrong with
// file, lists, name, seed or seeds.
Experiment load_experiment(const std::string& file, const std::vector<std::string>& overrides);
Experiment parse_experiment(const std::string& text, const std::string& file, const std::vector<std::string>& overrides);

}  // namespace kvlab
