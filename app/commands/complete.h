#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace kvlab {

struct OfferedWord {
  std::string word, help;
};

// files: paths that a shell adds: "files", "folders", "yaml" (folders and YAML files), "" (none).
struct Completion {
  std::vector<OfferedWord> candidates;
  std::string files;
};

// Candidates for the last of `words`, without the program's name. Shells filter them.
Completion completion_of(CLI::App& app, const std::vector<std::string>& words);

// Lines "word<tab>description", then ":files", ":folders" or ":yaml" if a shell is to add paths.
std::string completion_as_text(const Completion& completion);

}  // namespace kvlab
