#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/usage.h"

namespace kvlab {

// Device, inode, size, mtime and ctime in ns.
using FileStamp = std::tuple<std::uint64_t, std::uint64_t, std::int64_t, std::int64_t, std::int64_t>;
// nullopt: no such file.
std::optional<FileStamp> stamp_of(const std::filesystem::path& path);

// Files as they were when they were added.
class SeenFiles {
 public:
  // It may be absent.
  void add(const std::string& path);
  // False if a file has changed, or was so young when it was added that a later change may keep its stamp.
  [[nodiscard]] bool are_unchanged() const;

 private:
  std::vector<std::pair<std::string, std::optional<FileStamp>>> stamps_;
  bool is_settled_ = true;
};

// Values made of files, kept while the files are unchanged. Thread-safe; one value is made at a time.
template <class Value>
class FileMemo {
 public:
  // make(SeenFiles&): reads files, and adds those that UsageLog does not note. Notes the others on each call.
  template <class Make>
  std::shared_ptr<const Value> get(const std::string& key, const Make& make) {
    const std::lock_guard lock(mutex_);
    Entry& entry = entries_[key];
    if (entry.value == nullptr || !entry.seen.are_unchanged()) entry = made_by(make);
    for (const std::string& file : entry.noted) UsageLog::note_file(file);
    return entry.value;
  }

 private:
  struct Entry {
    std::shared_ptr<const Value> value;
    std::set<std::string> noted;
    SeenFiles seen;
  };
  template <class Make>
  static Entry made_by(const Make& make) {
    const UsageLog log;
    Entry entry;
    entry.value = std::make_shared<const Value>(make(entry.seen));
    entry.noted = log.files();
    for (const std::string& file : entry.noted) entry.seen.add(file);
    return entry;
  }
  std::mutex mutex_;
  std::map<std::string, Entry> entries_;
};

}  // namespace kvlab
