#pragma once

#include <string>
#include <vector>

#include "app/commands/offers.h"

namespace kvlab {

struct OfferedWord {
  std::string word, help;
};

// files: paths that a shell adds: "files", "folders", "yaml" (folders and YAML files), "" (none).
struct Completion {
  std::vector<OfferedWord> candidates;
  std::string files;
};

struct WordsBefore {
  std::vector<std::string> arguments;  // without options
  bool is_first_value = true;          // of the option or argument
};

// An unreadable source has no candidates.
void add_offered(const Offered& offered, const std::string& typed, const WordsBefore& before, Completion& completion);

}  // namespace kvlab
