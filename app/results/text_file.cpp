#include "app/results/text_file.h"

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
