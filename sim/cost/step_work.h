#pragma once

#include <cstdint>
#include <vector>

#include "sim/cost/op_work.h"
#include "sim/cost/parallel.h"

namespace kvlab {

// The operations of a step outside attention on one rank; with Parallel{} those of the whole replica.

// Operations of one layer of that class that depend on the number of tokens only: `tokens` of the whole replica. Without the experts where
// these take tokens of other ranks too (dp > 1).
void layer_ops(const ModelSpec& m, const Parallel& p, const LayerClass& layer, std::int64_t tokens, std::vector<OpWork>& ops);
// The experts of one layer, for `tokens` of all ranks.
OpWork experts_op(const ModelSpec& m, const Parallel& p, std::int64_t tokens);
// Operations once per step on its tokens: embedding, final_layernorm.
void step_ops(const ModelSpec& m, const Parallel& p, std::int64_t tokens, std::vector<OpWork>& ops);
// Operations once per step on the rows that need logits: lm_head, sampler.
void head_ops(const ModelSpec& m, const Parallel& p, std::int64_t rows, std::vector<OpWork>& ops);

}  // namespace kvlab
