#include "app/export/export_format.h"

#include <fmt/format.h>

#include <stdexcept>

#include "app/results/safe_files.h"
#include "app/results/text_file.h"
#include "base/error.h"

namespace kvlab {

namespace fs = std::filesystem;

bool ExportFolder::has(const fs::path& name) const { return kind_of(folder_ / name) != PathKind::kNothing; }

fs::path ExportFolder::make(const fs::path& name) {
  const fs::path path = folder_ / name;
  if (kind_without_link(path) != PathKind::kNothing && !is_own_)
    throw InputError(path.string() + ": is there already: remove it, or choose another --out");
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) throw InputError(path.parent_path().string() + ": cannot be made: " + error.message());
  written_.push_back(path);
  return path;
}

void ExportFolder::write(const fs::path& name, std::string_view text) { replace_file(make(name), text); }

void ExportFolder::copy(const fs::path& name, const fs::path& from) {
  const fs::path path = make(name);
  std::error_code error;
  fs::copy_file(from, path, fs::copy_options::overwrite_existing, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(path, ignored);
  throw std::runtime_error(path.string() + ": cannot be written: " + error.message());
}

}  // namespace kvlab
