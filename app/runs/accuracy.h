#pragma once

#include <optional>
#include <string>

#include "app/runs/summary_row.h"
#include "base/params.h"
#include "engine/grade/grader.h"
#include "policies/kv/policy.h"
#include "sim/replay/replay.h"

namespace kvlab {

// A run of `host: engine` with `eval`: the model, and the graded samples.
struct AccuracySetup {
  std::string model;    // folder
  std::string backend;  // cpu or cuda
  std::string eval_file;
  EvalChoice choice;
  GradeOptions options;
  // The first samples of each task and length are replayed too, with the same recipes on recorded attention.
  std::int32_t replay_per_task = 0, replay_steps = 0;
  // Runs with equal texts share model, samples and prefills.
  std::string text;
};

// The results of one run on one sample.
struct SampleGrades {
  std::vector<GradedAnswer> answers;
  std::optional<Fidelity> replayed;
  std::vector<std::optional<bool>> found;  // per answer, if replayed: finds_needles() over its steps; none: nothing to find
};

// Errors with file:line:column: a folder or file that is not there.
AccuracySetup read_accuracy(Params& p, std::uint64_t seed);

// The header and one row of answers.csv; `answer`: its place in the sample.
std::string answers_header();
std::string answer_row(const std::string& run_id, const Recipe& recipe, const EvalSample& sample, const GradeOptions& options,
                       const SampleGrades& grades, std::size_t answer);

// A remark on samples that keep more than the policy's budget; "": none do.
std::string remark_on_prompts(const KvPolicy& policy, std::span<const EvalSample> samples, const GradeOptions& options);

// Rows of summary.csv, one per task and length in order of first appearance (docs/accuracy.md).
std::vector<Fields> accuracy_rows(const Recipe& recipe, std::span<const EvalSample> samples, std::span<const SampleGrades* const> grades,
                                  const GradeOptions& options);

}  // namespace kvlab
