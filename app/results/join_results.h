#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvlab {

// Joins newest sweeps in a new folder. Axes: `results` (each row's folder) and those of all. Returns remarks on duplicate runs. Throws
// Throws InputError if `out` holds an experiment's results, or kinds or columns differ.
std::string join_results(const std::filesystem::path& out, const std::vector<std::filesystem::path>& folders);

}  // namespace kvlab
