#pragma once

#include <filesystem>

namespace kvlab {

// The folder with the program's own data (profiles/, policies/, experiments/, claims/, traces/samples/, engine/probe/): $KVLAB_HOME, else
// the folder given to set_data_root(), else the source tree that the program was built from.
std::filesystem::path data_root();

// For a program that is installed apart from its source tree. Call it before the first data_root().
void set_data_root(const std::filesystem::path& folder);

// `folder` ("policies/systems") of the program's data: the one in the working directory if it has `sample`, else the one in data_root().
std::filesystem::path shipped_folder(const std::filesystem::path& folder, const std::filesystem::path& sample);

}  // namespace kvlab
