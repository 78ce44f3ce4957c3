#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "app/runs/sweep/experiment.h"

namespace kvlab {

struct InputFile {
  std::string label;  // "file: a.csv": key and path as written
  std::filesystem::path path;
  bool is_model = false;  // a folder of which only the model's files are read
  bool is_kept = false;   // a sample that the run makes if absent; its settings are in the config
};
// Files of a model's folder that engine or simulator read.
std::vector<std::filesystem::path> files_of_model(const std::filesystem::path& folder);

using InputList = std::vector<InputFile>;

// Inputs of an experiment. Stamps files before they are read, and a folder when its fingerprint is computed, before the first run.
class InputFiles {
 public:
  explicit InputFiles(const Experiment& experiment);
  // Adds files of models, GPUs and recipes noted while reading a plan.
  void add_spec_files(const Choices* choices, const std::set<std::string>& files);

  [[nodiscard]] const InputList& of_run(const RunSpec& run) const { return files_.at(run.choices.get()); }
  std::string fingerprint(const InputFile& file);
  // Path -> fingerprint.
  [[nodiscard]] const std::map<std::string, std::string>& all() const { return fingerprint_; }
  // Throws InputError if a file of the run was written since first seen, even with equal bytes. Thread-safe.
  void require_unchanged(const RunSpec& run) const;

 private:
  // Device, inode, size, mtime, ctime.
  using Stamp = std::tuple<std::uint64_t, std::uint64_t, std::int64_t, std::int64_t, std::int64_t>;
  using Stamps = std::vector<std::pair<std::string, Stamp>>;
  static Stamps stamps_of(const InputFile& file);
  void look_at(const InputFile& file);
  void visit(const YAML::Node& node, const std::string& key, InputList& found) const;
  void add_named(const std::string& key, const std::string& text, InputList& found) const;

  const Experiment& experiment_;
  std::map<const Choices*, InputList> files_;
  std::map<std::string, Stamps> stamps_;
  std::map<std::string, std::string> fingerprint_;
};

// Id per run from all inputs of its result except code: twelve hexadecimal digits, the first a letter so that tables keep it as text.
// Changed code redoes a run under the same id.
std::vector<std::string> run_ids(const Experiment& experiment, InputFiles& files);

}  // namespace kvlab
