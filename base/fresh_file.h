#pragma once

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string_view>

namespace kvlab {

// Writes PATH.newPID-N; keep() renames it to `path`, so that readers see the old or the new file; else it is removed. Throws
// std::runtime_error with `path`. Removes leftovers of killed processes.
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

// True for TARGET.newPID and TARGET.newPID-N.
bool is_fresh_name(std::string_view name, std::string_view target);

}  // namespace kvlab
