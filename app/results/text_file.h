#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvlab {

// A file being written, with a buffer of its own. Every failure (a full disk, a folder that vanished) is a std::runtime_error
// that names the file; close() is where the last of them shows, so it must be called.
class TextFile {
 public:
  explicit TextFile(const std::filesystem::path& path);
  ~TextFile() = default;

  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() >= kFlushBytes) flush();
  }
  void write(std::string_view text);
  void close();

 private:
  static constexpr std::size_t kFlushBytes = 1 << 16;
  struct Close {
    void operator()(std::FILE* f) const noexcept { std::fclose(f); }
  };
  void flush();
  std::string name_;
  std::unique_ptr<std::FILE, Close> file_;
  fmt::memory_buffer buffer_;
};

// Puts `text` in place of `path` in one rename, so that readers see the old or the new file, never half of one, even after a power cut.
void replace_file(const std::filesystem::path& path, std::string_view text);

// A 64-bit fingerprint of a file's bytes; of a folder: of the names and bytes of the files in it, at any depth.
std::uint64_t fingerprint_of_path(const std::filesystem::path& path);
// The same of some files of a folder, whatever their order.
std::uint64_t fingerprint_of_files(const std::filesystem::path& folder, std::vector<std::filesystem::path> files);
std::uint64_t fingerprint_of_text(std::string_view text, std::uint64_t seed = 0);
std::string hex(std::uint64_t value);

}  // namespace kvlab
