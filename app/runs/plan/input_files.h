#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "app/runs/sweep/experiment.h"
#include "base/config/params.h"

namespace kvlab {

struct InputFile {
  std::string label;  // "file: a.csv", as written
  std::filesystem::path path;
  bool is_model = false;  // a folder; only the model's files are read
  bool is_kept = false;   // a sample that the run makes if absent; the config has its settings
};
// In a model's folder, read by engine or simulator.
std::vector<std::filesystem::path> files_of_model(const std::filesystem::path& folder);

using InputList = std::vector<InputFile>;

// Stamps files before they are read, and a folder when it is fingerprinted, before the first run.
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

// From all inputs except code: twelve hexadecimal digits, the first a letter so that tables keep it as text.
std::vector<std::string> run_ids(const Experiment& experiment, InputFiles& files);

// A folder, or a hub id's in the local Hugging Face cache (noted as inputs of the run); other texts are returned as a path.
// Throws InputError if an id has no weights.
std::string read_model_folder(const Params& p, const std::string& text);

}  // namespace kvlab
