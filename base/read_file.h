#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace kvlab {

// Throws InputError if the file cannot be opened, is special (refuse_special_file) or a Git LFS pointer. expected: "a YAML file".
std::string read_file(const std::filesystem::path& path, std::string_view expected = "a file");
// "" if it cannot be opened.
std::string read_if_there(const std::filesystem::path& path);

// A regular file. False also for a path that cannot be looked up: too long, no permission.
bool is_file(const std::filesystem::path& path);

// Throws InputError if it cannot be written.
void write_file(const std::filesystem::path& path, std::string_view text);

// Throws InputError for directories, devices and named pipes, but not for the shell's (/dev/stdin, /dev/fd/N).
void refuse_special_file(const std::string& path, std::string_view expected);

}  // namespace kvlab
