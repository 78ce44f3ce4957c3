#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "sim/cost/cost_model.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/parallel.h"

namespace kvlab {

// FLOPs and HBM bytes of the operations of a step on one GPU, by the formulas of kernels/. With Parallel{} it is the work
// of the whole replica. The names are those of kernel profiles.
struct OpWork {
  std::string_view name;
  std::int64_t flops = 0, bytes = 0;
  int times = 1;  // in a layer, or in a step for operations outside layers
};

struct Work {
  std::int64_t flops = 0, bytes = 0;
};

// Operations of one layer that depend on the number of tokens only: `tokens` of the whole replica.
void layer_ops(const ModelSpec& m, const Parallel& p, std::int64_t tokens, std::vector<OpWork>& ops);
// Operations once per step on its tokens: embedding, final_layernorm.
void step_ops(const ModelSpec& m, const Parallel& p, std::int64_t tokens, std::vector<OpWork>& ops);
// Operations once per step on the rows that need logits: lm_head, sampler.
void head_ops(const ModelSpec& m, const Parallel& p, std::int64_t rows, std::vector<OpWork>& ops);
// Attention of one layer. kv_tokens: cached tokens of all decode rows before their own.
Work decode_work(const ModelSpec& m, const Parallel& p, std::int64_t rows, std::int64_t kv_tokens);
Work prefill_work(const ModelSpec& m, const Parallel& p, const PrefillPiece& piece);
// A policy's operation, over all layers.
Work policy_work(const ModelSpec& m, const Parallel& p, const PolicyOp& op);

}  // namespace kvlab
