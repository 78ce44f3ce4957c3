#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/runs/accuracy/attention_samples.h"
#include "app/runs/report/summary_row.h"
#include "base/config/params.h"
#include "engine/grade/grader.h"
#include "policies/kv/policy/policy.h"
#include "sim/replay/replay.h"

namespace kvlab {

// `host: engine` with `eval`.
struct AccuracySetup {
  std::string model;    // folder
  std::string backend;  // cpu or cuda
  std::string eval_file;
  EvalChoice choice;
  GradeOptions options;
  // First samples per task and length, replayed on recorded attention.
  std::int32_t replay_per_task = 0, replay_steps = 0;
  // Runs with equal text share model, samples and prefills.
  std::string text;
};

struct SampleGrades {
  std::vector<GradedAnswer> answers;
  std::optional<Fidelity> replayed;
  std::vector<std::optional<bool>> found;  // per answer, if replayed: finds_needles() over its steps; nullopt: nothing to find
};

// Throws InputError for a missing folder or file.
AccuracySetup read_accuracy(Params& p, std::uint64_t seed);

// answers.csv. answer: index in the sample.
std::string answers_header();
std::string answer_row(const std::string& run_id, const Recipe& recipe, const EvalSample& sample, const GradeOptions& options,
                       const SampleGrades& grades, std::size_t answer);

// On samples that keep more than the policy's budget, or "".
std::string remark_on_prompts(const KvPolicy& policy, std::span<const EvalSample> samples, const GradeOptions& options);

// Rows of summary.csv by task and length (docs/accuracy.md).
std::vector<Fields> accuracy_rows(const Recipe& recipe, std::span<const EvalSample> samples, std::span<const SampleGrades* const> grades,
                                  const GradeOptions& options);

// With the full cache on the CPU.
struct ReplayedSample {
  using Spans = std::vector<std::pair<std::int32_t, std::int32_t>>;  // [begin, end)
  AttentionSample sample;
  std::uint64_t draws = 0;
  Spans answer_steps;  // per answer: steps that choose its tokens; empty if not all are recorded or the prompt lacks it
};

ReplayedSample record_sample(const GradeSample& sample, const GradeNeeds& needs, const AccuracySetup& setup);

void add_replay(const ReplayedSample& recorded, const Recipe& recipe, std::uint64_t seed, SampleGrades& grades);

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
