#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "app/runs/accuracy.h"
#include "app/runs/attention_samples.h"
#include "engine/grade/grader.h"

namespace kvlab {

// A graded sample as replay takes it: the prompt, and the tokens after it as they were run with the full cache on the CPU.
struct ReplayedSample {
  using Spans = std::vector<std::pair<std::int32_t, std::int32_t>>;  // [begin, end)
  AttentionSample sample;
  std::uint64_t draws = 0;
  Spans answer_steps;  // per answer: decode steps that choose its tokens; empty if some are not recorded or it is not in the prompt
};

ReplayedSample record_sample(const GradeSample& sample, const GradeNeeds& needs, const AccuracySetup& setup);

// Replays a recipe: sets grades.replayed and grades.found.
void add_replay(const ReplayedSample& recorded, const Recipe& recipe, std::uint64_t seed, SampleGrades& grades);

}  // namespace kvlab
