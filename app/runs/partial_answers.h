#pragma once

#include <filesystem>
#include <map>
#include <vector>

#include "app/runs/accuracy.h"

namespace kvlab {

// Grades of one run that is not complete, in a file to which every sample is appended once it is graded.
class PartialAnswers {
 public:
  // Reads what an earlier call left; a line that was cut off is dropped.
  explicit PartialAnswers(std::filesystem::path file);
  [[nodiscard]] const std::map<std::int32_t, SampleGrades>& by_sample() const { return by_sample_; }
  void add(const SampleGrades& sample);
  void remove_file() const;

 private:
  std::filesystem::path file_;
  std::map<std::int32_t, SampleGrades> by_sample_;
  bool is_cut_off_ = false;  // the file's last line
};

}  // namespace kvlab
