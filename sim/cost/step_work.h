#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/attention/attention_decode/attention_decode.h"
#include "kernels/attention/attention_prefill/attention_prefill.h"
#include "sim/cost/cost_model.h"
#include "sim/cost/model_spec.h"
#include "sim/cost/operations.h"
#include "sim/cost/parallel.h"

namespace kvlab {

// FLOPs and HBM bytes of the operations of a step on one GPU, by the formulas of kernels/. With Parallel{} it is the work
// of the whole replica.
struct OpWork {
  OpId op;
  std::int64_t flops = 0, bytes = 0;
  int times = 1;                         // in a layer, or in a step for operations outside layers
  double share = 1;                      // of the layers that have it
  const WeightFormat* format = nullptr;  // of the model: the types it is computed in; null: the model's type
};

struct Work {
  std::int64_t flops = 0, bytes = 0;
};

// Operations of one layer that depend on the number of tokens only: `tokens` of the whole replica. If layers differ, this is a mean layer.
// Without the experts where these take tokens of other ranks too (dp > 1).
void layer_ops(const ModelSpec& m, const Parallel& p, std::int64_t tokens, std::vector<OpWork>& ops);
// The experts of one layer, for `tokens` of all ranks.
OpWork experts_op(const ModelSpec& m, const Parallel& p, std::int64_t tokens);
// Operations once per step on its tokens: embedding, final_layernorm.
void step_ops(const ModelSpec& m, const Parallel& p, std::int64_t tokens, std::vector<OpWork>& ops);
// Operations once per step on the rows that need logits: lm_head, sampler.
void head_ops(const ModelSpec& m, const Parallel& p, std::int64_t rows, std::vector<OpWork>& ops);
// Attention of one layer of one model on one rank: the shape but for the batch, so that a step costs a few multiplications.
class AttentionWork {
 public:
  AttentionWork(const ModelSpec& m, const Parallel& p);
  // kv_tokens: cached tokens that all decode rows see before their own; each row sees its own token too.
  [[nodiscard]] Work decode(std::int64_t rows, std::int64_t kv_tokens) const {
    AttentionDecodeShape s = decode_;
    s.rows = rows;
    s.kv_tokens = kv_tokens + rows;
    return {flops(s), bytes(s)};
  }
  [[nodiscard]] Work prefill(const PrefillPiece& piece) const {
    AttentionPrefillShape s = prefill_;
    s.new_tokens = piece.new_tokens;
    s.kv_before = piece.kv_before;
    return {flops(s), bytes(s)};
  }

 private:
  AttentionDecodeShape decode_;
  AttentionPrefillShape prefill_;
};
// The share of a policy's operations that falls on one rank: KV heads are cut over ranks, or repeated where there are fewer.
double policy_share(const ModelSpec& m, const Parallel& p);

}  // namespace kvlab
