#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kvlab {

// "PATH: cannot be opened: No such file or directory; did you mean 'NEAR'?". Reads errno: call right after the attempt.
std::string open_error(const std::string& path);

// Throws InputError for unreadable files, special ones (refuse_special_file), Git LFS pointers. expected: "a YAML file".
std::string read_file(const std::filesystem::path& path, std::string_view expected = "a file");
// "" if it cannot be opened.
std::string read_if_there(const std::filesystem::path& path);

// A regular file. False for paths that cannot be looked up.
bool is_file(const std::filesystem::path& path);

// Throws InputError if it cannot be written.
void write_file(const std::filesystem::path& path, std::string_view text);

// InputError for directories, devices and named pipes, except the shell's (/dev/stdin, /dev/fd/N).
void refuse_special_file(const std::string& path, std::string_view expected);

}  // namespace kvlab
