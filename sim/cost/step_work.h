#pragma once

#include <cstdint>
#include <vector>

#include "sim/cost/op_work.h"
#include "sim/cost/parallel.h"

namespace kvlab {

// A step's operations outside attention on one rank; with Parallel{} for the whole replica.

// One layer of the class for `tokens` of the whole replica, without experts if these take tokens of other ranks (dp > 1).
void layer_ops(const ModelSpec& m, const Parallel& p, const LayerClass& layer, std::int64_t tokens, std::vector<OpWork>& ops);
// One layer, for `tokens` of all ranks.
OpWork experts_op(const ModelSpec& m, const Parallel& p, std::int64_t tokens);
// Per step on tokens: embedding, final_layernorm.
void step_ops(const ModelSpec& m, const Parallel& p, std::int64_t tokens, std::vector<OpWork>& ops);
// Per step on rows with logits: lm_head, sampler.
void head_ops(const ModelSpec& m, const Parallel& p, std::int64_t rows, std::vector<OpWork>& ops);

}  // namespace kvlab
