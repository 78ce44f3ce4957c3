#pragma once

#include <string>
#include <vector>

#include "app/commands/offers.h"

namespace kvlab {

// A word that completion offers, with its description ("": none).
struct OfferedWord {
  std::string word, help;
};

// The words offered, and whether a shell adds paths by itself: files "files", "folders", "yaml" (folders and YAML files), "" (none).
struct Completion {
  std::vector<OfferedWord> candidates;
  std::string files;
};

// The command line before the word that is completed.
struct WordsBefore {
  std::vector<std::string> arguments;  // of the command, without options
  bool is_first_value = true;          // the option or argument has no value yet
};

// Adds what a source offers for the word `typed`. A source that cannot be read offers nothing.
void add_offered(const Offered& offered, const std::string& typed, const WordsBefore& before, Completion& completion);

}  // namespace kvlab
