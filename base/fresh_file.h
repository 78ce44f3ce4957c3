#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

namespace kvlab {

// Writes PATH.newPID-N; keep() renames it to `path`: readers see the old or the new file. Else it is removed, as leftovers of killed
// processes are. Throws std::runtime_error with `path`.
class FreshFile {
 public:
  explicit FreshFile(std::filesystem::path path);
  ~FreshFile();
  FreshFile(const FreshFile&) = delete;
  FreshFile& operator=(const FreshFile&) = delete;

  void write(std::string_view text);
  void keep();  // after syncing to disk

 private:
  struct Close {
    void operator()(std::FILE* f) const noexcept { std::fclose(f); }
  };
  [[noreturn]] void fail(int why) const;
  std::filesystem::path path_, fresh_;
  std::unique_ptr<std::FILE, Close> file_;
  bool is_there_ = false;
};

// TARGET.newPID or TARGET.newPID-N.
bool is_fresh_name(std::string_view name, std::string_view target);

}  // namespace kvlab
