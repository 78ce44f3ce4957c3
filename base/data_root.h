#pragma once

#include <filesystem>

namespace kvlab {

// The program's data (profiles/, policies/, experiments/, claims/, traces/samples/, engine/probe/): $KVLAB_HOME, else set_data_root()'s,
// else the build's source tree.
std::filesystem::path data_root();

// Before the first data_root().
void set_data_root(const std::filesystem::path& folder);

// `folder` here if it has `sample`, else in data_root().
std::filesystem::path shipped_folder(const std::filesystem::path& folder, const std::filesystem::path& sample);

}  // namespace kvlab
