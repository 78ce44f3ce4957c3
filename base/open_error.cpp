#include "base/open_error.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <vector>

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

}  // namespace kvlab
