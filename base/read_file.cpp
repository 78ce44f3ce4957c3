#include "base/read_file.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/fresh_file.h"
#include "base/open_error.h"

namespace kvlab {

void refuse_special_file(const std::string& path, std::string_view expected) {
  const std::string_view what = special_file(path);
  const bool is_of_shell = path == "/dev/stdin" || path.starts_with("/dev/fd/") || path.starts_with("/proc/self/fd/");
  if (what.empty() || (what == "a pipe" && is_of_shell)) return;
  throw InputError(fmt::format("{}: is {}; {} is expected{}", path, what, expected, what == "a pipe" ? ": save it to one" : ""));
}

std::string read_file(const std::filesystem::path& path, std::string_view expected) {
  refuse_special_file(path.string(), expected);
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw InputError(open_error(path.string()));
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  refuse_lfs_pointer(text, path.string());
  return text;
}

std::string read_if_there(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

bool is_file(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

void write_file(const std::filesystem::path& path, std::string_view text) {
  try {
    FreshFile file(path);
    file.write(text);
    file.keep();
  } catch (const std::runtime_error& e) {
    throw InputError(e.what());
  }
}

}  // namespace kvlab
