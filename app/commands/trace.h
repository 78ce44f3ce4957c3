#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "traces/row_reader.h"

namespace kvlab {

// `kvlab trace inspect|convert|generate`: input is a trace, or an experiment (.yaml) whose `trace:` is meant.
struct TraceCommand {
  std::string input, output, output_format;
  std::string tokenizer;  // folder; "": formats that hold text estimate
  std::vector<std::string> set;
  std::optional<std::uint64_t> seed;  // absent: as the experiment says, else 1
};

// Counts the tokens of a text with the tokenizer of a folder (tokenizer.json). kvlab_sim has none.
TokenCounter token_counter(const std::string& folder);

int inspect_trace(const TraceCommand& command, std::ostream& out);
int convert_trace(const TraceCommand& command, std::ostream& out);

// `kvlab profile lint|convert`. tp 0: every degree the profile has; no format: by the files in the folder.
struct ProfileCommand {
  std::string folder, output, format, model, hardware;
  int tp = 0;
};
// Prints the findings; status 1 when one of them is an error.
int lint_profile_folder(const ProfileCommand& command, std::ostream& out);
int convert_profile_folder(const ProfileCommand& command, std::ostream& out);

}  // namespace kvlab
