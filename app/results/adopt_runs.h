#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "app/results/results.h"

namespace kvlab {

// Copies complete runs of other results folders into `into`, where they are not there already: of each id the first folder that has it.
// `resolved` gives the text of a run's resolved.yaml for its place in `into`, without the list of defaults: paths are relative to it. Each
// of `others` is locked meanwhile. Returns the number of copies. InputError: one of them is no results folder, or is being written to.
std::size_t adopt_runs(const std::vector<std::string>& ids, const std::vector<std::filesystem::path>& others, const ResultsFolder& into,
                       const std::function<std::string(const std::string& id)>& resolved);

}  // namespace kvlab
