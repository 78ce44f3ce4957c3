#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>

#include "base/error.h"

namespace kvlab {

// "a directory", "a pipe", "a device"; "" for regular files.
inline std::string_view special_file(const std::string& path) {
  std::error_code error;
  switch (std::filesystem::status(path, error).type()) {
    case std::filesystem::file_type::directory:
      return "a directory";
    case std::filesystem::file_type::fifo:
      return "a pipe";
    case std::filesystem::file_type::character:
    case std::filesystem::file_type::block:
    case std::filesystem::file_type::socket:
      return "a device";
    default:
      return "";
  }
}

inline bool is_no_regular_file(const std::string& path) { return !special_file(path).empty(); }

// `text`: the file or its beginning.
inline bool is_lfs_pointer(std::string_view text) { return text.starts_with("version https://git-lfs"); }
inline constexpr std::size_t kLfsPointerBytes = 23;  // needed by is_lfs_pointer()
inline constexpr const char* kLfsPointerError = "is a Git LFS pointer, not the file that it stands for; 'git lfs pull' fetches that";

inline void refuse_lfs_pointer(std::string_view text, const std::string& path) {
  if (is_lfs_pointer(text)) throw InputError(path + ": " + kLfsPointerError);
}

}  // namespace kvlab
