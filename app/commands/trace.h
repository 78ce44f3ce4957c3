#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "traces/row_reader.h"

namespace kvlab {

// input: a trace, or an experiment (.yaml) with `trace:`.
struct TraceCommand {
  std::string input, output, output_format;
  std::string tokenizer;  // folder; "": formats with text estimate
  std::vector<std::string> set;
  std::optional<std::uint64_t> seed;  // nullopt: the experiment's, else 1
};

// By a folder's tokenizer.json. kvlab_sim has none.
TokenCounter token_counter(const std::string& folder);

int inspect_trace(const TraceCommand& command, std::ostream& out);
int convert_trace(const TraceCommand& command, std::ostream& out);

// tp 0: every degree in the profile. format "": by the folder's files.
struct ProfileCommand {
  std::string folder, output, format, model, hardware;
  int tp = 0;
};
// Returns 1 if a finding is an error.
int lint_profile_folder(const ProfileCommand& command, std::ostream& out);
int convert_profile_folder(const ProfileCommand& command, std::ostream& out);

}  // namespace kvlab
