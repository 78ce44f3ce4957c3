#pragma once

#include <filesystem>
#include <map>

#include "app/runs/accuracy/accuracy.h"

namespace kvlab {

class PartialAnswers {
 public:
  // Drops a truncated line.
  explicit PartialAnswers(std::filesystem::path file);
  [[nodiscard]] const std::map<std::int32_t, SampleGrades>& by_sample() const { return by_sample_; }
  void add(const SampleGrades& sample);
  void remove_file() const;

 private:
  std::filesystem::path file_;
  std::map<std::int32_t, SampleGrades> by_sample_;
  bool is_cut_off_ = false;  // the last line
};

}  // namespace kvlab
