#pragma once

#include <set>
#include <string>
#include <utility>

namespace kvlab {

// Sources and files of a run beyond its config's, noted in this thread's newest log. Note cached reads too.
class UsageLog {
 public:
  UsageLog() : outer_(std::exchange(newest_, this)) {}
  ~UsageLog() { newest_ = outer_; }
  UsageLog(const UsageLog&) = delete;
  UsageLog& operator=(const UsageLog&) = delete;

  [[nodiscard]] const std::set<std::string>& sources() const { return sources_; }
  [[nodiscard]] const std::set<std::string>& files() const { return files_; }

  static void note_source(const std::string& file) {
    if (newest_ != nullptr) newest_->sources_.insert(file);
  }
  static void note_file(const std::string& file) {
    if (newest_ != nullptr) newest_->files_.insert(file);
  }

 private:
  static inline thread_local UsageLog* newest_ = nullptr;
  UsageLog* outer_;
  std::set<std::string> sources_, files_;
};

}  // namespace kvlab
