#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "app/runs/experiment.h"

namespace kvlab {

// All that a validation may write.
inline constexpr const char* kValidationFiles[] = {"validation.csv", "throughput.csv", "validation_steps.csv"};

// Names the folder in the file KVLAB_RESULT_FILE, if there is such a variable: the front door draws figures of it.
void name_results(const std::string& folder);

std::string program_version();  // "0.1.0", with the commit where known

// results/NAME/: runs/ID of every sweep that was run into it, and at the top the tables of the newest sweep. Only one program at a time may
// write: the folder is locked. Files at its top are replaced in one rename each; runs/ID appear whole. So whatever ends the program, what
// is there is complete. A file `.kvlab.json` says that the folder is kvlab's, which experiment it belongs to, and which files at its top
// kvlab wrote: no other is ever replaced or removed.
class ResultsFolder {
 public:
  enum class Joins : std::uint8_t { kNo, kYes };
  // The folder of an experiment, created if absent. InputError: another kvlab is writing to it; it holds files and is not kvlab's; it
  // belongs to another experiment and is not joined.
  ResultsFolder(std::filesystem::path folder, const Experiment& experiment, Joins joins);
  // As it is, of whatever experiment. InputError when it is not kvlab's.
  explicit ResultsFolder(std::filesystem::path folder);
  [[nodiscard]] const std::filesystem::path& path() const { return folder_; }
  [[nodiscard]] std::filesystem::path runs() const { return folder_ / "runs"; }

  // Notes the runs of the sweep that begins. InputError where one of the files that it will write at the top is there and not kvlab's.
  void begin_sweep(const std::vector<std::string>& run_ids, const std::set<std::string>& will_write);
  [[nodiscard]] const std::set<std::string>& sweep() const { return sweep_; }
  // Names that kvlab gives to files at the top.
  static const std::set<std::string>& top_names();

  // Puts complete files in the place of those that kvlab wrote before: name -> file, which is moved. InputError where one is not kvlab's.
  void replace(const std::map<std::string, std::filesystem::path>& fresh);
  void replace_texts(const std::map<std::string, std::string>& texts);
  // The path at which a file is written until it takes its place at the top.
  [[nodiscard]] std::filesystem::path fresh_of(const std::string& name) const;
  // Removes a file at the top if kvlab wrote it.
  void remove(const std::string& name);
  // Removes what compares the runs with others: the files of a validation.
  void remove_comparisons();

  // The folder of partial results that interrupted runs leave to their continuation; may be absent.
  [[nodiscard]] std::filesystem::path partial() const { return folder_ / "partial"; }
  [[nodiscard]] std::filesystem::path partial_of(const std::string& key) const { return partial() / (key + ".txt"); }
  // Takes the folder away again if it was made by this object: no run gave a result, not even in part, so there is nothing to keep.
  void remove_if_new();

 private:
  // Keeps other programs from writing there, as long as it exists.
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
  // False: there is no marker, and nothing by which an earlier version's folder is known either.
  bool read_marker();
  bool read_numbered();
  void write_marker() const;
  void require_experiment(const Experiment& experiment, Joins joins);
  [[nodiscard]] bool is_own(const std::string& name) const;
  void require_own(const std::string& name) const;

  std::filesystem::path folder_;
  std::string experiment_, file_;                       // that it belongs to; the file seen from the folder
  std::map<std::string, std::set<std::string>> files_;  // at the top that kvlab wrote -> digests that they may have
  std::set<std::string> sweep_;
  bool is_new_ = false;
  Lock lock_;
};

}  // namespace kvlab
