#pragma once

#include <filesystem>
#include <vector>

namespace kvlab {

// A kvlab process writes to the folder.
bool is_locked(const std::filesystem::path& folder);

// Top-level files of a killed kvlab. Safe to remove.
std::vector<std::filesystem::path> unfinished_files(const std::filesystem::path& folder);

}  // namespace kvlab
