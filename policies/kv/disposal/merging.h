#pragma once

#include "kernels/parted_rows.h"
#include "policies/kv/disposal/disposal.h"

namespace kvlab {

// Scratch of step.ops.
PartedRows part_rows(LayerStep& step, const Kept& kept);

// Moves kept tokens to the front of their rows.
void compact(LayerStep& step, const Kept& kept);

// Attention per token since it was cached, mean over a KV head's query heads, in word `first_word`. Call observe() in every step. Results
// [kv.total()] are scratch of step.ops.
namespace attention_mass {
[[nodiscard]] Needs needs();
void observe(LayerStep& step, std::int32_t first_word);
[[nodiscard]] const float* sum(LayerStep& step, std::int32_t first_word);
[[nodiscard]] const float* per_query(LayerStep& step, std::int32_t first_word);  // sum / number of queries that saw the token
}  // namespace attention_mass

}  // namespace kvlab
