#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <iosfwd>
#include <string>

namespace kvlab {

struct CleanCommand {
  std::string folder;
  bool yes = false;      // remove without asking
  bool can_ask = false;  // a user reads the question and can type an answer
};

// `kvlab clean`: lists everything in a results folder that is not part of its newest sweep (other sweeps' runs, remains of interrupted
// runs, grades of incomplete runs) and removes it after confirmation. Only files that kvlab's manifests name are removed. Returns 0.
int clean_results(const CleanCommand& command, std::istream& in, std::ostream& out);

// Adds the command, whose options write into the struct, which outlives `app`; `choose` is called where it is the chosen one.
void add_clean_command(CLI::App& app, CleanCommand& command, const std::function<void()>& choose);

}  // namespace kvlab
