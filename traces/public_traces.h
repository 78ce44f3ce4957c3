#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlab {

struct PublicTrace {
  std::string name, title, licence, format, paper;
  std::string address;  // "": not one file
  std::string steps;
  std::string file;         // in the traces folder
  std::string sha256;       // "": unknown
  std::uint64_t bytes = 0;  // 0: unknown
};

// traces/public_traces.yaml here, else in the source tree.
std::string public_traces_list();
// public/ next to the list.
std::string public_traces_folder(const std::string& list);
// Throws InputError (file:line).
std::vector<PublicTrace> read_public_traces(const std::string& list);

// "; './kvlab trace fetch NAME' downloads it" for its name or file, else "".
std::string public_trace_advice(const std::string& path);

}  // namespace kvlab
