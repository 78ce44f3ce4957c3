#include "base/read_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "base/error.h"
#include "base/file_kind.h"
#include "base/fresh_file.h"
#include "base/text.h"

namespace kvlab {

namespace {

namespace fs = std::filesystem;

std::string nearest_in(const fs::path& folder, const std::string& name) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder.empty() ? "." : folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error))
    names.push_back(entry->path().filename().string());
  std::sort(names.begin(), names.end());  // deterministic among equally near names
  const std::vector<std::string> meant = meant_names(name, names);
  return meant.empty() ? "" : meant.front();
}

// In growing pieces: pipes have no size.
std::string rest_of(std::istream& stream, const fs::path& path) {
  std::string text;
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  for (std::size_t piece = std::max<std::size_t>(1 << 12, error ? 0 : bytes + 1); stream; piece *= 2) {
    const std::size_t before = text.size();
    text.resize(before + piece);
    stream.read(text.data() + before, static_cast<std::streamsize>(piece));
    text.resize(before + static_cast<std::size_t>(stream.gcount()));
  }
  return text;
}

// An existing path with equal or nearest parts; empty if none.
fs::path nearest_path(const fs::path& path) {
  fs::path near;
  std::error_code error;
  for (const fs::path& part : path) {
    const fs::path next = near / part;
    if (fs::exists(next, error)) {
      near = next;
      continue;
    }
    const std::string name = nearest_in(near, part.string());
    if (name.empty()) return {};
    near /= name;
  }
  return near;
}

}  // namespace

std::string open_error(const std::string& path) {
  const int why = errno;
  std::error_code error;
  if (fs::exists(path, error) || error) return path + ": cannot be opened: " + std::strerror(why);
  const fs::path near = nearest_path(path);
  return path + ": cannot be opened: " + std::strerror(ENOENT) + (near.empty() ? "" : "; did you mean '" + near.string() + "'?");
}

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
  std::string text = rest_of(stream, path);
  refuse_lfs_pointer(text, path.string());
  return text;
}

std::string read_if_there(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return rest_of(stream, path);
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
