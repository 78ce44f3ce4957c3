#pragma once

#include <cstddef>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "app/results/code_version.h"
#include "app/results/results.h"

namespace kvlab {

// Resolved.yaml for a run's new place: without defaults, with relative paths.
using ResolvedText = std::function<std::string(const std::string& id)>;
using IsCurrent = std::function<bool(const std::string& id, const CodeVersion& code)>;

// Copies complete runs from the first of `others` with a current one, else, if `into` lacks the run, from the first with any. Returns their
// number. Throws InputError if one is not a results folder or is being written.
std::size_t adopt_runs(const std::vector<std::string>& ids, const std::vector<std::filesystem::path>& others, const ResultsFolder& into,
                       const ResolvedText& resolved, const IsCurrent& is_current = {});

}  // namespace kvlab
