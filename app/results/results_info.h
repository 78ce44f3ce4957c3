#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvlab {

inline constexpr const char* kResultsRoot = "results";  // the folder that `run` writes results/NAME to

// The content of a results folder, read without its lock: a sweep may be writing there.
struct ResultsInfo {
  std::filesystem::path folder;
  std::string experiment, file;  // of the newest sweep; the file as it was given
  std::string kind;              // "simulation", "replay", "sim, engine", ...
  std::string finished;          // when the newest sweep ended; "" of one that was cut off
  std::size_t num_runs = 0;      // of the newest sweep
  std::size_t num_finished = 0;  // of these
  std::size_t num_unused = 0;    // complete runs of other sweeps
  std::uintmax_t bytes = 0;      // of all files, figures included
  bool has_other_code = false;   // its newest sweep was made by another version of the program's core
};

// True for a folder that kvlab marked as results, or that an earlier version wrote.
bool is_results_folder(const std::filesystem::path& folder);

// InputError: it is none.
ResultsInfo read_results_info(const std::filesystem::path& folder);

// `named` itself where it is a results folder, else results/`named`. InputError that suggests a name: there is neither.
std::filesystem::path find_results(const std::string& named);

// The results folders in a folder, sorted, and the number of other entries.
struct ResultsFound {
  std::vector<std::filesystem::path> folders;
  std::size_t num_others = 0;
};
ResultsFound results_in(const std::filesystem::path& folder);

// "12.3 MiB".
std::string size_text(std::uintmax_t bytes);

}  // namespace kvlab
