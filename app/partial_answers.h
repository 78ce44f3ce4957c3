#pragma once

#include <filesystem>
#include <map>
#include <vector>

#include "engine/grade/grader.h"

namespace kvlab {

// Answers of one run that is not complete, in a file to which every sample is appended once it is graded.
class PartialAnswers {
 public:
  // Reads what an earlier call left; a line that was cut off is dropped.
  explicit PartialAnswers(std::filesystem::path file);
  [[nodiscard]] const std::map<std::int32_t, std::vector<GradedAnswer>>& by_sample() const { return by_sample_; }
  void add(std::span<const GradedAnswer> answers);  // of whole samples
  void remove_file() const;

 private:
  std::filesystem::path file_;
  std::map<std::int32_t, std::vector<GradedAnswer>> by_sample_;
};

}  // namespace kvlab
