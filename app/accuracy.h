#pragma once

#include <string>

#include "app/summary_row.h"
#include "base/params.h"
#include "engine/grade/grader.h"

namespace kvlab {

// A run of `host: engine` with `eval`: what answers are graded, by which model.
struct AccuracySetup {
  std::string model;  // folder
  std::string eval_file;
  EvalChoice choice;
  GradeOptions options;
  bool on_gpu = false;
  // Runs with equal texts share model, samples and prefills.
  std::string text;
};

// Errors with file:line:column: a folder or file that is not there.
AccuracySetup read_accuracy(Params& p, std::uint64_t seed);

// A line per answer, for answers.csv; `prefix` is what the run and its policy are.
std::string answers_header();
std::string answer_row(const std::string& run_id, const Recipe& recipe, const EvalSample& sample, const GradeOptions& options,
                       const GradedAnswer& answer);

// Rows of summary.csv, one per task and length in order of first appearance (docs/accuracy.md).
std::vector<Fields> accuracy_rows(const Recipe& recipe, std::span<const EvalSample> samples, std::span<const GradedAnswer> answers,
                                  const GradeOptions& options);

}  // namespace kvlab
