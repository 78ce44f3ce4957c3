#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "app/experiment.h"

namespace kvlab {

// results/NAME/ while an experiment runs into it. Only one program at a time may: the folder is locked.
// Files at its top are replaced in one rename each; runs/ID appear whole. So whatever ends the program, what is there is complete.
class ResultsFolder {
 public:
  // Makes the folder. InputError when another kvlab is writing to it.
  explicit ResultsFolder(std::filesystem::path folder);
  ~ResultsFolder();
  ResultsFolder(const ResultsFolder&) = delete;
  ResultsFolder& operator=(const ResultsFolder&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }
  [[nodiscard]] std::filesystem::path runs() const { return folder_ / "runs"; }
  // Fingerprint of the inputs of a complete run, "" when there is no complete run of that number.
  [[nodiscard]] std::string key_of(const std::string& run_id) const;
  // Removes runs that the experiment does not have, and leftovers of runs that were cut off.
  void remove_others(const Experiment& experiment) const;
  // Whether the tables at the top are those of these runs, in this order.
  [[nodiscard]] bool has_tables_of(const std::vector<std::string>& run_ids) const;
  // Removes what compares the runs with others: the files of a validation.
  void remove_comparisons() const;
  // Joins the tables of these runs (summary.csv, requests.csv, ...), in this order.
  void join_runs(const std::vector<std::string>& run_ids) const;
  // What runs that were cut off leave to those that go on, where there is any.
  [[nodiscard]] std::filesystem::path partial() const { return folder_ / "partial"; }
  [[nodiscard]] std::filesystem::path partial_of(const std::string& key) const { return partial() / (key + ".txt"); }
  void remove_partial() const { std::filesystem::remove_all(partial()); }
  // Takes the folder away again if it was made by this object: no run gave a result, not even in part, so there is nothing to keep.
  void remove_if_new() const;

 private:
  void join(const std::string& name, const std::vector<std::string>& run_ids) const;
  std::filesystem::path folder_;
  bool is_new_ = false;
  int lock_ = -1;
};

// Fingerprints of the files that an experiment names, each computed once.
class InputFiles {
 public:
  // All files a run names: "key: path as written" -> fingerprint. A scalar that names an existing file or folder counts, whatever its key;
  // of hardware, recipe and model the file that their name stands for, or the folder of that name that a model is read from.
  std::map<std::string, std::string> of_run(const Experiment& experiment, const RunSpec& run);
  // Path as found -> fingerprint.
  [[nodiscard]] const std::map<std::string, std::string>& all() const { return fingerprint_; }

 private:
  void visit(const YAML::Node& node, const std::string& key, const Experiment& experiment, std::map<std::string, std::string>& found);
  std::map<std::string, std::string> fingerprint_;
};

// Names the folder in the file KVLAB_RESULT_FILE, if there is such a variable: the front door draws figures of it.
void name_results(const std::string& folder);

// Fingerprint of the running program itself: results of another build are not taken for this one's.
std::string program_fingerprint();
std::string program_version();  // "0.1.0", with the commit where known

// What a run's result depends on, as one fingerprint. how: how it is run, where that is not in the experiment.
std::string input_key(const Experiment& experiment, const RunSpec& run, const std::string& how, InputFiles& files);

}  // namespace kvlab
