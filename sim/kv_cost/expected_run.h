#pragma once

#include <memory>
#include <span>

#include "sim/kv_cost/count_sources.h"
#include "sim/kv_cost/shape_run.h"

namespace kvlab {

// A recipe on shapes, for serving and `describe`.
class ExpectedRun {
 public:
  // Errors as ShapeRun.
  ExpectedRun(const Recipe& recipe, const ModelShape& model);
  ExpectedRun(const ExpectedRun&) = delete;
  ExpectedRun& operator=(const ExpectedRun&) = delete;

  ShapeRun::Result step(const ShapeRun::Seq& seq);
  // Counts at their bounds.
  ShapeRun::Result step_at_bounds(std::span<const ShapeRun::Seq> batch);
  ShapeRun& shapes() { return shapes_; }

 private:
  [[nodiscard]] std::int32_t cut_target(const ShapeRun::Seq& seq) const;

  Budget budget_;
  std::unique_ptr<Trigger> trigger_;
  ExpectedCounts counts_;
  ShapeRun shapes_;
};

}  // namespace kvlab
