#pragma once

#include <set>
#include <string>

namespace kvlab {

// Sources and files that a run uses beside those that its config names, noted on this thread while the log exists: sources of the policies
// that are made, and files of the named models, GPUs and recipes. The newest log of a thread gets the notes. A plan must note
// the same each time it is read: where something read earlier is used again, that is noted, too.
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
