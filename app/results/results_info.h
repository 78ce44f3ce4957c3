#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvlab {

inline constexpr const char* kResultsRoot = "results";

// Read without the lock: a sweep may be writing.
struct ResultsInfo {
  std::filesystem::path folder;
  std::string experiment, file;  // newest sweep; file as given
  std::string kind;              // "simulation", "sim, engine", ...
  std::string finished;          // newest sweep; "" if interrupted
  std::size_t num_runs = 0;      // newest sweep
  std::size_t num_finished = 0;  // of num_runs
  std::size_t num_unused = 0;    // complete, of other sweeps
  std::uintmax_t bytes = 0;      // with figures
  bool has_other_code = false;   // newest sweep: another version of the core
};

// Marked by kvlab, or written by an earlier version.
bool is_results_folder(const std::filesystem::path& folder);

ResultsInfo read_results_info(const std::filesystem::path& folder);

// `named` if it is a results folder, else results/`named`. Throws InputError if neither exists.
std::filesystem::path find_results(const std::string& named);

// folders: sorted; num_others: other entries.
struct ResultsFound {
  std::vector<std::filesystem::path> folders;
  std::size_t num_others = 0;
};
ResultsFound results_in(const std::filesystem::path& folder);

std::string size_text(std::uintmax_t bytes);

}  // namespace kvlab
