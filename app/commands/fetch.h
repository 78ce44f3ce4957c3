#pragma once

#include <iosfwd>
#include <string>

namespace kvlab {

// `kvlab trace fetch [NAME]`: lists public traces, or downloads one.
struct FetchCommand {
  std::string name;
  std::string list;  // "": the shipped one
};
// Downloads by curl or wget into public/ next to the list, resuming. Throws InputError without a connection or for a wrong SHA-256.
int fetch_trace(const FetchCommand& command, std::ostream& out);

}  // namespace kvlab
