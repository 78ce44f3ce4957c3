#include "base/file_memo.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>

namespace kvlab {

std::optional<FileStamp> stamp_of(const std::filesystem::path& path) {
  struct stat s {};
  if (::stat(path.c_str(), &s) != 0) return std::nullopt;
  const auto ns = [](const timespec& t) { return static_cast<std::int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec; };
  return FileStamp{s.st_dev, s.st_ino, s.st_size, ns(s.st_mtim), ns(s.st_ctim)};
}

void SeenFiles::add(const std::string& path) {
  constexpr std::chrono::nanoseconds kCoarsest = std::chrono::seconds(2);  // unit of a file system's times
  const std::optional<FileStamp> stamp = stamp_of(path);
  stamps_.emplace_back(path, stamp);
  if (!stamp) return;
  const std::chrono::nanoseconds now = std::chrono::system_clock::now().time_since_epoch();
  is_settled_ = is_settled_ && now - std::chrono::nanoseconds(std::max(std::get<3>(*stamp), std::get<4>(*stamp))) > kCoarsest;
}

bool SeenFiles::are_unchanged() const {
  return is_settled_ && std::all_of(stamps_.begin(), stamps_.end(), [](const auto& seen) { return stamp_of(seen.first) == seen.second; });
}

}  // namespace kvlab
