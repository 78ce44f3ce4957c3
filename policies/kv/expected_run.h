#pragma once

#include <memory>
#include <span>

#include "policies/kv/count_sources.h"
#include "policies/kv/shape_run.h"

namespace kvlab {

// A recipe on shapes with the counts that its allocator expects (ExpectedCounts) where data decides. Serving and `describe` take
// their memory from here, so that both state the same.
class ExpectedRun {
 public:
  // Errors as ShapeRun's.
  ExpectedRun(const Recipe& recipe, const ModelShape& model);
  ExpectedRun(const ExpectedRun&) = delete;
  ExpectedRun& operator=(const ExpectedRun&) = delete;

  // One step of one sequence.
  ShapeRun::Result step(const ShapeRun::Seq& seq);
  // One step of a batch in which counts that depend on data are at their bounds.
  ShapeRun::Result step_at_bounds(std::span<const ShapeRun::Seq> batch);
  ShapeRun& shapes() { return shapes_; }

 private:
  [[nodiscard]] std::int32_t cut_target(const ShapeRun::Seq& seq) const;

  Budget budget_;
  std::unique_ptr<Trigger> trigger_;
  ExpectedCounts counts_;
  ShapeRun shapes_;  // asks counts_
};

}  // namespace kvlab
