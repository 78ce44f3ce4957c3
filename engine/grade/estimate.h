#pragma once

#include <string>

#include "engine/grade/grader.h"

namespace kvlab {

// Extrapolates from a short prompt and some decode steps.
class GradeWork {
 public:
  GradeWork(const EngineModel& model, const GradeOptions& options) : model_(model), options_(options) {}
  void add(const EvalSample& sample, const Recipe& recipe);
  [[nodiscard]] double seconds() const;
  [[nodiscard]] std::string describe() const;  // "about 12 minutes on this machine"

 private:
  const EngineModel& model_;
  GradeOptions options_;
  std::int32_t last_sample_ = -1;
  double prompt_flops_ = 0, chunk_flops_ = 0, decode_tokens_ = 0, decode_kv_bytes_ = 0, copied_bytes_ = 0;
};

}  // namespace kvlab
