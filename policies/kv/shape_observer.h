#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policies/kv/policy.h"

namespace kvlab {

// A chunk of an extra forward pass: its queries, and the prompt's tokens that they are read over.
struct PassShape {
  std::int32_t count = 0, first_position = 0, ctx_begin = 0, ctx_end = 0;
  friend bool operator==(const PassShape&, const PassShape&) = default;
};

// Sizes that do not follow from lengths.
struct SeqExtras {
  std::int32_t question_begin = -1;  // position in the prompt; -1: unknown
  std::int32_t future_tokens = 0;    // queries still to come, for oracles
  std::vector<PassShape> pass;       // chunks of the extra pass, where the recipe asks for one
  friend bool operator==(const SeqExtras&, const SeqExtras&) = default;
};

// Meets needs with counts and positions; all data pointers are null.
class ShapeObserver final : public Observer {
 public:
  // The spans live as long as the observer is used.
  ShapeObserver(const Needs& needs, std::span<const SeqStep> seqs, std::span<const SeqExtras> extras);
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
