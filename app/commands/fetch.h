#pragma once

#include <iosfwd>
#include <string>

namespace kvlab {

// `kvlab trace fetch [NAME]`: without a name prints the public traces; with one downloads it, by curl or wget.
struct FetchCommand {
  std::string name;
  std::string list;  // of public traces; "": the shipped one
};
// Downloads into public/ beside the list. An interrupted download goes on where it ended. InputError where there is no connection, with the
// address and the place to put the file, or where the file's SHA-256 is not the listed one; the file is not kept then.
int fetch_trace(const FetchCommand& command, std::ostream& out);

}  // namespace kvlab
