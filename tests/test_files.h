#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/read_file.h"

namespace kvlab {

// A file of the recorded data that some tests read; the test is skipped where it is absent.
inline std::string data_file(const std::string& path) {
  const char* const folder = std::getenv("KVLAB_DATA");
  return std::string(folder != nullptr && *folder != '\0' ? folder : KVLAB_SOURCE_DIR "/../shared/data") + "/" + path;
}

// A folder of its own for one test, removed at its end.
class TempFolder {
 public:
  TempFolder() {
    path_ = (std::filesystem::temp_directory_path() / "kvlab-test-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) throw InternalError("no temporary folder");
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::string file(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(file(name)).parent_path());
    write_file(file(name), text);
    return file(name);
  }

 private:
  std::string path_;
};

}  // namespace kvlab
