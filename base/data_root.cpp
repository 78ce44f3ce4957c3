#include "base/data_root.h"

#include <cstdlib>
#include <system_error>

namespace kvlab {

namespace fs = std::filesystem;

namespace {

fs::path& default_data_root() {
  static fs::path root = KVLAB_SOURCE_DIR;
  return root;
}

}  // namespace

fs::path data_root() {
  const char* const set = std::getenv("KVLAB_HOME");
  return set != nullptr && *set != '\0' ? fs::path(set) : default_data_root();
}

void set_data_root(const fs::path& folder) { default_data_root() = folder; }

fs::path shipped_folder(const fs::path& folder, const fs::path& sample) {
  std::error_code error;
  return fs::exists(folder / sample, error) ? folder : data_root() / folder;
}

}  // namespace kvlab
