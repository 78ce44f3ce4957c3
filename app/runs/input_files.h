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

#include "app/runs/experiment.h"

namespace kvlab {

// A file or folder that a run reads.
struct InputFile {
  std::string label;  // key and path as written: "file: a.csv"
  std::filesystem::path path;
  bool is_model = false;  // a folder from which only the model's own files are read
  bool is_kept = false;   // a sample that the run itself makes where the file is not there: its settings are in the config
};
// Files of a model's folder that the engine and the simulator read. Results that are written into it do not count.
std::vector<std::filesystem::path> files_of_model(const std::filesystem::path& folder);

using InputList = std::vector<InputFile>;

// Files that an experiment names. Each is looked at once, a file before anything reads it and a folder when its fingerprint is computed,
// which happens once, before the first run.
class InputFiles {
 public:
  explicit InputFiles(const Experiment& experiment);
  // Files of the models, GPUs and recipes that a run of these choices names; noted while its plan is read.
  void add_spec_files(const Choices* choices, const std::set<std::string>& files);

  [[nodiscard]] const InputList& of_run(const RunSpec& run) const { return files_.at(run.choices.get()); }
  // Fingerprint of a file's content.
  std::string fingerprint(const InputFile& file);
  // Path as found -> fingerprint.
  [[nodiscard]] const std::map<std::string, std::string>& all() const { return fingerprint_; }
  // Throws InputError that names a file of the run which is not what it was when it was first looked at, also where the bytes are the same
  // again: nothing tells which of them were read. May be called by several threads.
  void require_unchanged(const RunSpec& run) const;

 private:
  // Device, inode, size, and the instants of the last change of data and of status.
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

// The id of each run, computed from what determines its result: twelve hexadecimal digits of which the first is a letter, so that tables
// never take one for a number. The code is no part of it: a run that other code made is done again in its place.
std::vector<std::string> run_ids(const Experiment& experiment, InputFiles& files);

}  // namespace kvlab
