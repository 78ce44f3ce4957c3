#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "app/results/code_version.h"
#include "app/results/results.h"

namespace kvlab {

// The text of a run's resolved.yaml for its new place, without the list of defaults: paths are relative to it.
using ResolvedText = std::function<std::string(const std::string& id)>;
// Returns true where a run that this code made need not be done again.
using IsCurrent = std::function<bool(const std::string& id, const CodeVersion& code)>;

// Copies complete runs of other results folders into `into`, where they are not there already: of each id the first folder that has it. A
// run that is not current gives way to one that is. Each of `others` is locked meanwhile. Returns the number of copies. InputError: one of
// them is no results folder, or is being written to.
std::size_t adopt_runs(const std::vector<std::string>& ids, const std::vector<std::filesystem::path>& others, const ResultsFolder& into,
                       const ResolvedText& resolved, const IsCurrent& is_current = {});

}  // namespace kvlab
