#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvlab {

// Joins finished runs and tables of several folders' newest sweeps in a new folder. Its axes are `results` (each row's folder) and those of
// all. Returns remarks on duplicate runs. Throws InputError if `out` holds an experiment's results, or kinds or columns differ.
std::string join_results(const std::filesystem::path& out, const std::vector<std::filesystem::path>& folders);

}  // namespace kvlab
