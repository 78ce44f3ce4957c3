#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "app/results/code_version.h"
#include "app/runs/sweep/experiment.h"

namespace kvlab {

// A kvlab process writes to the folder.
bool is_locked(const std::filesystem::path& folder);

// Top-level files of a killed kvlab. Safe to remove.
std::vector<std::filesystem::path> unfinished_files(const std::filesystem::path& folder);

inline constexpr const char* kValidationFiles[] = {"validation.csv", "throughput.csv", "validation_steps.csv"};

// Into $KVLAB_RESULT_FILE, if set.
void name_results(const std::string& folder);

// results/NAME/: runs/ID of all its sweeps, and tables of the newest. Locked: one writer. Top-level files and runs/ID are replaced by
// rename, so they are complete even after a crash. `.kvlab.json` names the experiment and kvlab's top-level files; others are never
// replaced or removed.
class ResultsFolder {
 public:
  enum class Joins : std::uint8_t { kNo, kYes };
  // Opens or creates. Throws InputError if another kvlab is writing, or the folder is another experiment's and not joined, or not kvlab's
  // and not empty.
  ResultsFolder(std::filesystem::path folder, const Experiment& experiment, Joins joins);
  // Any experiment's folder. Throws InputError if not kvlab's.
  explicit ResultsFolder(std::filesystem::path folder);
  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }
  [[nodiscard]] std::filesystem::path runs() const { return folder_ / "runs"; }

  // Throws InputError if a file in `will_write` exists and is not kvlab's.
  void begin_sweep(const std::vector<std::string>& run_ids, const std::set<std::string>& will_write);
  [[nodiscard]] const std::set<std::string>& sweep() const { return sweep_; }
  static const std::set<std::string>& top_names();

  // Moves complete files (name -> file) over kvlab's; throws InputError for others.
  void replace(const std::map<std::string, std::filesystem::path>& fresh);
  void replace_texts(const std::map<std::string, std::string>& texts);
  // Path for writing a file before replace().
  [[nodiscard]] std::filesystem::path fresh_of(const std::string& name) const;
  // Only if kvlab wrote it.
  void remove(const std::string& name);
  void remove_comparisons();

  // From interrupted runs; may be absent.
  [[nodiscard]] std::filesystem::path partial() const { return folder_ / "partial"; }
  [[nodiscard]] std::filesystem::path partial_of(const std::string& key) const { return partial() / (key + ".txt"); }
  // Removes a folder made by this object if it has no results.
  void remove_if_new();

 private:
  class Lock {
   public:
    Lock() = default;
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;
    void take(const std::filesystem::path& folder);

   private:
    int file_ = -1;
  };
  // False: no marker, or no sign of an earlier version's folder.
  bool read_marker();
  bool read_numbered();
  void write_marker() const;
  void require_experiment(const Experiment& experiment, Joins joins);
  [[nodiscard]] bool is_own(const std::string& name) const;
  void require_own(const std::string& name) const;

  std::filesystem::path folder_;
  std::string experiment_, file_;                       // file: relative to the folder
  std::map<std::string, std::set<std::string>> files_;  // top-level files -> possible digests
  std::set<std::string> sweep_;
  bool is_new_ = false;
  Lock lock_;
};

// Resolved.yaml for a run's new place: without defaults, with relative paths.
using ResolvedText = std::function<std::string(const std::string& id)>;
using IsCurrent = std::function<bool(const std::string& id, const CodeVersion& code)>;

// Copies complete runs from the first of `others` with a current one, else, if `into` lacks the run, from the first with any. Returns their
// number. Throws InputError if one is not a results folder or is being written.
std::size_t adopt_runs(const std::vector<std::string>& ids, const std::vector<std::filesystem::path>& others, const ResultsFolder& into,
                       const ResolvedText& resolved, const IsCurrent& is_current = {});

}  // namespace kvlab
