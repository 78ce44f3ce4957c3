#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/backend/engine_model.h"
#include "engine/grade/grader.h"

namespace kvlab {

constexpr std::int32_t kGradePageTokens = 64;

inline std::size_t place_of(std::int64_t i) { return static_cast<std::size_t>(i); }

// Samples under one recipe; step by step, by their numbers.
class Grading {
 public:
  struct Run {
    const GradeSample* sample = nullptr;
    EngineSequence sequence;
    std::size_t next_place = 0;
    std::vector<GradedAnswer> answers;
    double held_bytes = 0;  // on the GPU
    double resident = 0;    // sum of held bytes over the full cache's
    std::int32_t resident_steps = 0;

    [[nodiscard]] std::int32_t left() const { return static_cast<std::int32_t>(sample->ids.size()) - 1 - sequence.seen_tokens; }
  };
  // Each run's next `tokens` tokens.
  struct Step {
    std::vector<Run*> runs;
    std::int32_t tokens = 0;
    std::vector<StepPiece> pieces;
    std::vector<std::int32_t> ids, positions, rows;
    std::vector<std::size_t> places;  // per run: the first one after the step
  };

  Grading(const EngineModel& model, const Recipe& recipe, std::span<const GradeSample* const> samples, const GradeOptions& options);

  [[nodiscard]] std::size_t size() const { return runs_.size(); }
  void start(std::size_t i);   // runs the prompt
  void finish(std::size_t i);  // frees the cache
  [[nodiscard]] std::vector<Run*> those_left();
  [[nodiscard]] Run& run(std::size_t i) { return runs_[i]; }
  [[nodiscard]] static Step step_of(std::vector<Run*> runs, std::int32_t tokens);
  [[nodiscard]] CacheStep of_cache(const Step& step) { return {cache_.get(), step.pieces, {step.ids, step.positions}, step.rows}; }
  void take(const Step& step, std::span<const float> hidden);
  [[nodiscard]] std::vector<GradedAnswer> answers() const;

 private:
  [[nodiscard]] PolicyCache::Options cache_options() const;
  void prefill(Run& r);
  [[nodiscard]] double full_bytes(std::int32_t tokens) const;
  [[nodiscard]] double held_bytes(Run& r) { return static_cast<double>(cache_->resident(r.sequence).gpu); }
  void count_resident(Run& r, std::int32_t tokens);
  static std::size_t places_before(const Run& r, std::int32_t position);
  void grade_hidden(Run& r, std::size_t end, std::span<const float> hidden);

  const EngineModel& model_;
  const Recipe& recipe_;
  const GradeOptions& options_;
  std::vector<Run> runs_;
  std::unique_ptr<PolicyCache> cache_;
};

// Steps of several gradings, run together.
class StepsTogether {
 public:
  explicit StepsTogether(const EngineModel& model) : model_(model) {}
  void add(Grading& grading, std::vector<Grading::Run*> runs, std::int32_t tokens);
  void run();

 private:
  const EngineModel& model_;
  std::vector<std::pair<Grading*, Grading::Step>> steps_;
  std::size_t tokens_ = 0;
};

}  // namespace kvlab
