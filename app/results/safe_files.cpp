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
#include "base/fresh_file.h"
#include "base/hash.h"
#include "base/read_file.h"

namespace kvlab {

namespace fs = std::filesystem;

TextFile::TextFile(const fs::path& path) : name_(path.string()), file_(std::fopen(path.c_str(), "wb")) {
  if (!file_) throw std::runtime_error(name_ + ": cannot be written: " + std::strerror(errno));
}

void TextFile::write(std::string_view text) {
  buffer_.append(text.data(), text.data() + text.size());
  if (buffer_.size() >= kFlushBytes) flush();
}

void TextFile::flush() {
  if (std::fwrite(buffer_.data(), 1, buffer_.size(), file_.get()) != buffer_.size()) {
    throw std::runtime_error(name_ + ": cannot be written: " + std::strerror(errno));
  }
  buffer_.clear();
}

void TextFile::close() {
  flush();
  std::FILE* const file = file_.release();
  if (std::fclose(file) != 0) throw std::runtime_error(name_ + ": cannot be written: " + std::strerror(errno));
}

void replace_file(const fs::path& path, std::string_view text) {
  FreshFile file(path);
  file.write(text);
  file.keep();
}

std::uint64_t fingerprint_of_text(std::string_view text, std::uint64_t seed) {
  std::uint64_t hash = mix64(seed);
  for (std::size_t i = 0; i < text.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min<std::size_t>(8, text.size() - i));
    hash = mix64(hash ^ word);
  }
  return hash_combine(hash, text.size());
}

namespace {

std::uint64_t fingerprint_of_file(const fs::path& path) {
  refuse_special_file(path.string(), "a file");
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw InputError(open_error(path.string()));
  std::vector<char> chunk(1 << 20);
  std::uint64_t hash = 0;
  while (stream) {
    stream.read(chunk.data(), static_cast<std::streamsize>(chunk.size()));
    const auto got = static_cast<std::size_t>(stream.gcount());
    if (got > 0) hash = fingerprint_of_text({chunk.data(), got}, hash);
  }
  return hash;
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

std::string digest_of_file(const fs::path& path) { return fmt::format("{} {}", fs::file_size(path), hex(fingerprint_of_path(path))); }

void sync_path(const fs::path& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  const bool is_synced = file >= 0 && (::fsync(file) == 0 || errno == EINVAL);  // EINVAL: not supported by the file system
  const int why = errno;
  if (file >= 0) ::close(file);
  if (!is_synced) throw std::runtime_error(path.string() + ": cannot be written: " + std::strerror(why));
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
