#pragma once

#include <string>
#include <string_view>

namespace kvlab {

// The whole of a file. InputError where it cannot be opened, is special (refuse_special_file) or a Git LFS pointer. expected: "a YAML
// file", for the message.
std::string read_file(const std::string& path, std::string_view expected);

// Stops where `path` is a directory, a device, or a named pipe: opening that would wait for its writer. A pipe of the shell
// (/dev/stdin, /dev/fd/N) has its writer already.
void refuse_special_file(const std::string& path, std::string_view expected);

}  // namespace kvlab
