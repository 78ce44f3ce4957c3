#include "base/fresh_file.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill() is POSIX
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvlab {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kMark = ".new";

// Process id in a fresh file's name; 0: not such a name.
long process_of(std::string_view name, std::string_view target) {
  if (!name.starts_with(target) || !name.substr(target.size()).starts_with(kMark)) return 0;
  const std::string_view rest = name.substr(target.size() + kMark.size());
  long process = 0, part = 0;
  const char *const begin = rest.data(), *const end = begin + rest.size();
  const auto [after, error] = std::from_chars(begin, end, process);
  if (error != std::errc{} || process <= 0) return 0;
  if (after == end) return process;
  if (*after != '-') return 0;
  const auto [last, other_error] = std::from_chars(after + 1, end, part);
  return other_error == std::errc{} && last == end ? process : 0;
}

void remove_of_dead_processes(const fs::path& path) {
  std::error_code error;
  std::vector<fs::path> dead;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  const std::string target = path.filename().string();
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const long process = process_of(at->path().filename().string(), target);
    if (process > 0 && ::kill(static_cast<pid_t>(process), 0) != 0 && errno == ESRCH) dead.push_back(at->path());
  }
  for (const fs::path& file : dead)
    if (fs::is_regular_file(fs::symlink_status(file, error))) fs::remove(file, error);
}

fs::path fresh_path(const fs::path& path) {
  static std::atomic<unsigned> count{0};
  fs::path fresh = path;
  fresh += std::string(kMark) + std::to_string(::getpid()) + "-" + std::to_string(++count);
  return fresh;
}

}  // namespace

bool is_fresh_name(std::string_view name, std::string_view target) { return process_of(name, target) > 0; }

FreshFile::FreshFile(fs::path path) : path_(std::move(path)), fresh_(fresh_path(path_)) {
  std::error_code error;
  if (fs::is_directory(path_, error)) fail(EISDIR);
  remove_of_dead_processes(path_);
  file_.reset(std::fopen(fresh_.c_str(), "wbe"));
  if (!file_) fail(errno);
  is_there_ = true;
}

FreshFile::~FreshFile() {
  file_.reset();
  std::error_code ignored;
  if (is_there_) fs::remove(fresh_, ignored);
}

void FreshFile::fail(int why) const { throw std::runtime_error(path_.string() + ": cannot be written: " + std::strerror(why)); }

void FreshFile::write(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size()) fail(errno);
}

void FreshFile::keep() {
  if (std::fflush(file_.get()) != 0) fail(errno);
  if (::fsync(::fileno(file_.get())) != 0 && errno != EINVAL) fail(errno);  // some file systems cannot
  if (std::fclose(file_.release()) != 0) fail(errno);
  if (std::rename(fresh_.c_str(), path_.c_str()) != 0) fail(errno);
  is_there_ = false;
}

}  // namespace kvlab
