#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvlab {

// Copies the finished runs of the newest sweeps of several results folders into one new results folder, and joins their tables there: axes
// are those of all folders, and `results` names the folder of each row. Returns lines on runs that more than one folder has. InputError:
// `out` holds results of an experiment, the folders are of different kinds, or two tables have different columns.
std::string join_results(const std::filesystem::path& out, const std::vector<std::filesystem::path>& folders);

}  // namespace kvlab
