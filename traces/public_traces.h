#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvlab {

// A trace that its publisher offers for download.
struct PublicTrace {
  std::string name, title, licence, format, paper;
  std::string address;  // "": there is no single file, and `steps` says how to get it
  std::string steps;
  std::string file;         // below the folder of fetched traces
  std::string sha256;       // "": unknown
  std::uint64_t bytes = 0;  // 0: unknown
};

// traces/public_traces.yaml here, else that of the source tree.
std::string public_traces_list();
// The folder that fetched traces go to, public/ beside the list.
std::string public_traces_folder(const std::string& list);
// In the file's order. InputError (file:line) on a list that cannot be used.
std::vector<PublicTrace> read_public_traces(const std::string& list);

// For a path that does not exist: "; './kvlab trace fetch NAME' downloads it" where it is the name or the file of a public trace, else "".
std::string public_trace_advice(const std::string& path);

}  // namespace kvlab
