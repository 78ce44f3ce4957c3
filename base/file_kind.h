#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

namespace kvlab {

// Something stands at `path`, and it is no regular file: a folder, a pipe, a device.
inline bool is_no_regular_file(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
}

// What stands in a large file's place in a repository that was cloned without Git LFS; `text` is what the file holds, or begins with.
inline bool is_lfs_pointer(std::string_view text) { return text.starts_with("version https://git-lfs"); }
inline constexpr const char* kLfsPointerError = "is a Git LFS pointer, not the file that it stands for; 'git lfs pull' fetches that";

}  // namespace kvlab
