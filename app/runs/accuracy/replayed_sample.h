#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "app/runs/accuracy/accuracy.h"
#include "app/runs/accuracy/attention_samples.h"
#include "engine/grade/grader.h"

namespace kvlab {

// With the full cache on the CPU.
struct ReplayedSample {
  using Spans = std::vector<std::pair<std::int32_t, std::int32_t>>;  // [begin, end)
  AttentionSample sample;
  std::uint64_t draws = 0;
  Spans answer_steps;  // per answer: steps that choose its tokens; empty if not all are recorded or the prompt lacks it
};

ReplayedSample record_sample(const GradeSample& sample, const GradeNeeds& needs, const AccuracySetup& setup);

void add_replay(const ReplayedSample& recorded, const Recipe& recipe, std::uint64_t seed, SampleGrades& grades);

}  // namespace kvlab
