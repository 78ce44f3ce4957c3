#pragma once

#include <cstdint>
#include <vector>

#include "sim/cost/op_work.h"
#include "sim/cost/parallel.h"

namespace kvlab {

// Outside attention on one rank; with Parallel{} the whole replica.

// One layer for `tokens` of the whole replica, without experts that take tokens of other ranks (dp > 1).
void layer_ops(const ModelSpec& m, const Parallel& p, const LayerClass& layer, std::int64_t tokens, std::vector<OpWork>& ops);
// One layer, `tokens` of all ranks.
OpWork experts_op(const ModelSpec& m, const Parallel& p, std::int64_t tokens);
// Per step: embedding, final_layernorm.
void step_ops(const ModelSpec& m, const Parallel& p, std::int64_t tokens, std::vector<OpWork>& ops);
// Rows with logits: lm_head, sampler.
void head_ops(const ModelSpec& m, const Parallel& p, std::int64_t rows, std::vector<OpWork>& ops);

}  // namespace kvlab
