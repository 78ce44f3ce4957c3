#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace kvlab {

// No function follows a symbolic link in a path's last part.

enum class PathKind : std::uint8_t { kNothing, kFile, kFolder, kLink, kOther };
PathKind kind_of(const std::filesystem::path& path);

// Throws InputError for a link.
PathKind kind_without_link(const std::filesystem::path& path);

// Size and fingerprint: "1234 9f86d081884c7d65".
std::string digest_of_file(const std::filesystem::path& path);

// Waits until bytes, or a folder's names, are on disk.
void sync_path(const std::filesystem::path& path);
// Waits until all of its file system is on disk. False: an error, maybe of other files.
bool sync_file_system(const std::filesystem::path& folder);
// Syncs files concurrently, then their folder.
void sync_folder_of(const std::vector<std::filesystem::path>& files, const std::filesystem::path& folder);

// Swaps the two; `target` may be absent.
void exchange_folders(const std::filesystem::path& fresh, const std::filesystem::path& target);

// Removes `last` at the end, and the folder if empty.
void remove_files(const std::filesystem::path& folder, const std::set<std::string>& names, const std::string& last);

// Throws std::runtime_error with the name. Without close(), the last failures are lost.
class TextFile {
 public:
  explicit TextFile(const std::filesystem::path& path);
  ~TextFile() = default;

  template <class... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<Args>(args)...);
    if (buffer_.size() >= kFlushBytes) flush_full_pieces();
  }
  void write(std::string_view text);
  // Fields of a CSV line, to be ended by end_line(). Texts need no quotes.
  void field(std::string_view text) {
    add_field(text.size(), [&](char* at) { return std::copy(text.begin(), text.end(), at); });
  }
  void field(std::integral auto number) {
    constexpr std::size_t kMost = 24;
    add_field(kMost, [&](char* at) { return std::to_chars(at, at + kMost, number).ptr; });
  }
  void end_line();
  void close();
  // digest_of_file() after close().
  [[nodiscard]] std::string digest() const;

 private:
  static constexpr std::size_t kFlushBytes = 1 << 16;  // divides a chunk of the fingerprint
  struct Close {
    void operator()(std::FILE* f) const noexcept { std::fclose(f); }
  };
  // write: returns the end of what it writes.
  template <class Write>
  void add_field(std::size_t most, Write write) {
    const std::size_t begin = buffer_.size();
    buffer_.resize(begin + most + 1);
    char* const end = write(buffer_.data() + begin);
    *end = ',';
    buffer_.resize(static_cast<std::size_t>(end + 1 - buffer_.data()));
  }
  void flush(std::size_t bytes);
  void flush_full_pieces() { flush(buffer_.size() / kFlushBytes * kFlushBytes); }
  void add_to_hash(std::string_view piece);
  std::string name_;
  std::unique_ptr<std::FILE, Close> file_;
  fmt::memory_buffer buffer_;
  std::uint64_t hash_ = 0;
  std::size_t bytes_ = 0;
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
