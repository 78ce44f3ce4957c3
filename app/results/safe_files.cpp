#include "app/results/safe_files.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <stdexcept>

#include "base/error.h"
#include "base/file_memo.h"
#include "base/fresh_file.h"
#include "base/hash.h"
#include "base/read_file.h"

namespace kvlab {

namespace fs = std::filesystem;

namespace {

constexpr std::size_t kChunk = 1 << 20;  // of a file's fingerprint

std::uint64_t mix_words(std::string_view text, std::uint64_t hash) {
  constexpr std::size_t kWord = 8;
  std::uint64_t word = 0;
  for (; text.size() >= kWord; text.remove_prefix(kWord)) {
    std::memcpy(&word, text.data(), kWord);
    hash = mix64(hash ^ word);
  }
  if (text.empty()) return hash;
  word = 0;
  std::memcpy(&word, text.data(), text.size());
  return mix64(hash ^ word);
}

}  // namespace

TextFile::TextFile(const fs::path& path) : name_(path.string()), file_(std::fopen(path.c_str(), "wb")) {
  if (!file_) throw std::runtime_error(name_ + ": cannot be written: " + std::strerror(errno));
}

void TextFile::write(std::string_view text) {
  buffer_.append(text.data(), text.data() + text.size());
  if (buffer_.size() >= kFlushBytes) flush_full_pieces();
}

void TextFile::end_line() {
  buffer_[buffer_.size() - 1] = '\n';
  if (buffer_.size() >= kFlushBytes) flush_full_pieces();
}

void TextFile::flush(std::size_t bytes) {
  if (std::fwrite(buffer_.data(), 1, bytes, file_.get()) != bytes)
    throw std::runtime_error(name_ + ": cannot be written: " + std::strerror(errno));
  for (std::size_t at = 0; at < bytes; at += kFlushBytes) add_to_hash({buffer_.data() + at, std::min(kFlushBytes, bytes - at)});
  std::memmove(buffer_.data(), buffer_.data() + bytes, buffer_.size() - bytes);
  buffer_.resize(buffer_.size() - bytes);
}

// In order; only the last piece is shorter than kFlushBytes.
void TextFile::add_to_hash(std::string_view piece) {
  static_assert(kChunk % kFlushBytes == 0);
  hash_ = mix_words(piece, bytes_ % kChunk == 0 ? mix64(hash_) : hash_);
  bytes_ += piece.size();
  if (bytes_ % kChunk == 0) hash_ = hash_combine(hash_, kChunk);
}

std::string TextFile::digest() const {
  const std::size_t rest = bytes_ % kChunk;
  return fmt::format("{} {}", bytes_, hex(rest == 0 ? hash_ : hash_combine(hash_, rest)));
}

void TextFile::close() {
  flush(buffer_.size());
  std::FILE* const file = file_.release();
  if (std::fclose(file) != 0) throw std::runtime_error(name_ + ": cannot be written: " + std::strerror(errno));
}

void replace_file(const fs::path& path, std::string_view text) {
  FreshFile file(path);
  file.write(text);
  file.keep();
}

std::uint64_t fingerprint_of_text(std::string_view text, std::uint64_t seed) {
  return hash_combine(mix_words(text, mix64(seed)), text.size());
}

namespace {

std::uint64_t fingerprint_of_bytes(const fs::path& path) {
  refuse_special_file(path.string(), "a file");
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw InputError(open_error(path.string()));
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  const std::size_t size = error ? kChunk : std::clamp<std::uintmax_t>(bytes, 1, kChunk);
  const auto chunk = std::make_unique_for_overwrite<char[]>(size);
  std::uint64_t hash = 0;
  while (stream) {
    stream.read(chunk.get(), static_cast<std::streamsize>(size));
    const auto got = static_cast<std::size_t>(stream.gcount());
    if (got > 0) hash = fingerprint_of_text({chunk.get(), got}, hash);
  }
  return hash;
}

// Remembered: inputs are read by many sweeps of a process.
std::uint64_t fingerprint_of_file(const fs::path& path) {
  static FileMemo<std::uint64_t> known;
  return *known.get(path.string(), [&](SeenFiles& seen) {
    seen.add(path.string());
    return fingerprint_of_bytes(path);
  });
}

}  // namespace

PathKind kind_of(const fs::path& path) {
  std::error_code error;
  const fs::file_type type = fs::symlink_status(path, error).type();
  if (type == fs::file_type::not_found || type == fs::file_type::none) return PathKind::kNothing;
  if (type == fs::file_type::regular) return PathKind::kFile;
  if (type == fs::file_type::directory) return PathKind::kFolder;
  return type == fs::file_type::symlink ? PathKind::kLink : PathKind::kOther;
}

PathKind kind_without_link(const fs::path& path) {
  const PathKind kind = kind_of(path);
  if (kind == PathKind::kLink)
    throw InputError(path.string() + ": is a symbolic link; kvlab follows none where it replaces or removes files: move the link away");
  return kind;
}

std::string digest_of_file(const fs::path& path) { return fmt::format("{} {}", fs::file_size(path), hex(fingerprint_of_bytes(path))); }

void sync_path(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  const bool is_synced = file >= 0 && (::fsync(file) == 0 || errno == EINVAL);  // EINVAL: not supported by the file system
  const int why = errno;
  if (file >= 0) ::close(file);
  if (!is_synced) throw std::runtime_error(path.string() + ": cannot be written: " + std::strerror(why));
}

bool sync_file_system(const fs::path& folder) {
  const int file = ::open(folder.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  const bool is_synced = file >= 0 && ::syncfs(file) == 0;
  if (file >= 0) ::close(file);
  return is_synced;
}

void sync_folder_of(const std::vector<fs::path>& files, const fs::path& folder) {
  for (const fs::path& path : files) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (file < 0) continue;  // sync_path reports it
    ::sync_file_range(file, 0, 0, SYNC_FILE_RANGE_WRITE);
    ::close(file);
  }
  for (const fs::path& path : files) sync_path(path);
  sync_path(folder);
}

void exchange_folders(const fs::path& fresh, const fs::path& target) {
  if (kind_of(target) == PathKind::kNothing) return fs::rename(fresh, target);
  constexpr unsigned kExchange = 2;  // RENAME_EXCHANGE
  if (::syscall(SYS_renameat2, AT_FDCWD, fresh.c_str(), AT_FDCWD, target.c_str(), kExchange) == 0) return;
  fs::path aside = fresh;  // the file system cannot exchange
  aside += ".old";
  fs::rename(target, aside);
  fs::rename(fresh, target);
  fs::rename(aside, fresh);
}

void remove_files(const fs::path& folder, const std::set<std::string>& names, const std::string& last) {
  const auto remove = [&](const std::string& name) {
    const bool is_plain = fs::path(name).filename() == name;
    if (is_plain && kind_of(folder / name) == PathKind::kFile) fs::remove(folder / name);
  };
  for (const std::string& name : names)
    if (name != last) remove(name);
  std::error_code ignored;
  std::size_t others = 0;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) others += entry.path().filename() == last ? 0 : 1;
  if (others > 0) return;  // foreign files: keep the marked folder
  remove(last);
  fs::remove(folder, ignored);
}

std::uint64_t fingerprint_of_path(const fs::path& path) {
  if (!fs::is_directory(path)) return fingerprint_of_file(path);
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return fingerprint_of_files(path, std::move(files));
}

std::uint64_t fingerprint_of_files(const fs::path& folder, std::vector<fs::path> files) {
  std::sort(files.begin(), files.end());
  std::uint64_t hash = 0;
  for (const fs::path& file : files) {
    hash = hash_combine(fingerprint_of_text(file.lexically_relative(folder).string(), hash), fingerprint_of_file(file));
  }
  return hash;
}

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

}  // namespace kvlab
