#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvlab {

// Joins the finished runs of several folders' newest sweeps, and their tables, in a new results folder: axes are those of all, `results`
// names each row's folder. Returns remarks on runs found more than once. Throws InputError if `out` holds an experiment's results, or kinds
// or columns differ.
std::string join_results(const std::filesystem::path& out, const std::vector<std::filesystem::path>& folders);

}  // namespace kvlab
