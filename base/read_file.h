#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kvlab {

// The whole of a file. InputError where it cannot be opened, is special (refuse_special_file) or a Git LFS pointer. expected: "a YAML
// file", for the message.
std::string read_file(const std::filesystem::path& path, std::string_view expected = "a file");
// The same, but "" where it cannot be opened; any kind of file.
std::string read_if_there(const std::filesystem::path& path);

// Makes `text` the whole of a file. InputError where it cannot be written.
void write_file(const std::filesystem::path& path, std::string_view text);

// Stops where `path` is a directory, a device, or a named pipe: opening that would wait for its writer. A pipe of the shell
// (/dev/stdin, /dev/fd/N) has its writer already.
void refuse_special_file(const std::string& path, std::string_view expected);

}  // namespace kvlab
