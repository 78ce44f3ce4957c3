#pragma once

#include "kernels/parted_rows.h"
#include "policies/kv/part.h"

namespace kvlab {

// A disposal that changes the tokens that stay.
class Merging : public Disposal {};

// The step's tokens, kept and dropped; lists are scratch of step.ops.
PartedRows part_rows(LayerStep& step, const Kept& kept);

// Moves the kept tokens to the front of their rows.
void compact(LayerStep& step, const Kept& kept);

// Attention that each token received from every query since it was cached, in one word per token from `first_word` on, the mean over the
// query heads of a KV head. The user asks for needs() and calls observe() in every step. Results [kv.total()] are scratch of step.ops.
namespace attention_mass {
[[nodiscard]] Needs needs();
void observe(LayerStep& step, std::int32_t first_word);
[[nodiscard]] const float* sum(LayerStep& step, std::int32_t first_word);
[[nodiscard]] const float* per_query(LayerStep& step, std::int32_t first_word);  // the sum over the number of queries that saw the token
}  // namespace attention_mass

}  // namespace kvlab
