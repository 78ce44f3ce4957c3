#pragma once

#include <set>
#include <string>

namespace kvlab {

// Sources and files of a run beyond its config's, noted in this thread's newest log. Note cached reads too.
class UsageLog {
 public:
  UsageLog();
  ~UsageLog();
  UsageLog(const UsageLog&) = delete;
  UsageLog& operator=(const UsageLog&) = delete;

  [[nodiscard]] const std::set<std::string>& sources() const { return sources_; }
  [[nodiscard]] const std::set<std::string>& files() const { return files_; }

  static void note_source(const char* file);
  static void note_file(const std::string& file);

 private:
  UsageLog* outer_;
  std::set<std::string> sources_, files_;
};

}  // namespace kvlab
