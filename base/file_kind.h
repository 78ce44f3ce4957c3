#pragma once

#include <filesystem>
#include <string>
#include <system_error>

namespace kvlab {

// Something stands at `path`, and it is no regular file: a folder, a pipe, a device.
inline bool is_no_regular_file(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
}

}  // namespace kvlab
