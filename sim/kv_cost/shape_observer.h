#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/kv/forward_passes.h"
#include "policies/kv/needs.h"
#include "policies/kv/step.h"

namespace kvlab {

// Do not follow from lengths.
struct InputSizes {
  std::int32_t question_begin = -1;  // in the prompt; -1: unknown
  std::int32_t future_tokens = 0;    // for oracles
  std::vector<PassShape> pass;       // chunks
  friend bool operator==(const InputSizes&, const InputSizes&) = default;
};

// In a step of serving: the assumed question, and the extra pass if it runs after this step.
InputSizes input_sizes(const Needs& needs, const SeqStep& seq);

// Counts and positions; data pointers are null.
class ShapeObserver final : public Observer {
 public:
  // The spans outlive this.
  ShapeObserver(const Needs& needs, std::span<const SeqStep> seqs, std::span<const InputSizes> inputs);
  Observed observe(std::int32_t layer) override;

 private:
  Needs needs_;
  std::vector<Queries> step_, window_, pre_rope_queries_, future_;
  std::vector<const float*> no_floats_;
  std::vector<const std::int32_t*> no_ints_;
  std::vector<std::vector<PassQueries>> pass_;
  std::vector<std::span<const PassQueries>> pass_spans_;
};

}  // namespace kvlab
