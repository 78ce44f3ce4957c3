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

// Throws std::runtime_error with the name. Without close(), the last failures are lost.
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

// By rename: readers see the old or the new file, even after a power cut.
void replace_file(const std::filesystem::path& path, std::string_view text);

// 64 bits; of a folder, over names and bytes of all files below.
std::uint64_t fingerprint_of_path(const std::filesystem::path& path);
// For some files, in any order.
std::uint64_t fingerprint_of_files(const std::filesystem::path& folder, std::vector<std::filesystem::path> files);
std::uint64_t fingerprint_of_text(std::string_view text, std::uint64_t seed = 0);
std::string hex(std::uint64_t value);

}  // namespace kvlab
