#include "sim/replay/prompt_fidelity.h"

#include <cmath>
#include <vector>

#include "kernels/attention/sparse_prefill/sparse_prefill.h"

namespace kvlab {

namespace {

void attend_to_all(const PromptChunk& chunk, float* out, float* log_sum) {
  const std::int32_t block = 64;
  const PromptBlocks prompt = chunk.blocks(block);
  std::vector<std::int64_t> first{0};
  std::vector<std::int32_t> blocks;
  for (std::int64_t list = 0; list < prompt.num_lists(); ++list) {
    const std::int64_t own = prompt.first_block() + list % prompt.num_query_blocks();
    for (std::int64_t j = 0; j <= own; ++j) blocks.push_back(static_cast<std::int32_t>(j));
    first.push_back(static_cast<std::int64_t>(blocks.size()));
  }
  SparsePrefill all;
  all.q = chunk.q, all.k = chunk.k, all.v = chunk.v, all.out = out, all.log_sum = log_sum;
  all.new_tokens = prompt.new_tokens, all.kv_before = prompt.kv_before;
  all.q_heads = prompt.q_heads, all.kv_heads = prompt.kv_heads, all.head_dim = prompt.head_dim;
  all.scale = 1.0F / std::sqrt(static_cast<float>(prompt.head_dim));
  all.keys = {block, first.data(), blocks.data(), nullptr, nullptr};
  run_cpu(all);
}

}  // namespace

void PromptFidelity::add(KvPolicy& policy, Ops& ops, const AttentionTrace& trace, const ModelShape& model, std::int32_t layer,
                         const SeqStep& seq) {
  const LayerTensors& l = trace.layers[static_cast<std::size_t>(layer)];
  const std::int64_t d = model.head_dim, rows = std::int64_t{seq.new_tokens} * model.q_heads;
  const auto floats = [](std::int64_t n) { return std::vector<float>(static_cast<std::size_t>(n)); };
  std::vector<float> out = floats(rows * d), full = floats(rows * d), log_sum = floats(rows), full_sum = floats(rows);
  PromptChunk chunk{ops, model, layer, seq, l.q.data() + std::int64_t{seq.seen_tokens} * model.q_heads * d, l.k.data(), l.v.data()};
  chunk.out = out.data(), chunk.log_sum = log_sum.data();
  pairs_ += static_cast<double>(policy.attend_prompt(chunk));
  attend_to_all(chunk, full.data(), full_sum.data());
  for (std::int64_t r = 0; r < rows; ++r) {
    double error = 0, norm = 0;
    for (std::int64_t c = r * d; c < (r + 1) * d; ++c) {
      const double x = full[static_cast<std::size_t>(c)], y = out[static_cast<std::size_t>(c)];
      error += (y - x) * (y - x), norm += x * x;
    }
    rel_err_ += norm > 0 ? std::sqrt(error / norm) : 0;
    mass_ += std::exp(static_cast<double>(log_sum[static_cast<std::size_t>(r)]) - full_sum[static_cast<std::size_t>(r)]);
  }
  queries_ += rows;
  causal_ += model.q_heads * (static_cast<double>(seq.new_tokens) * seq.seen_tokens + 0.5 * seq.new_tokens * (seq.new_tokens + 1.0));
}

ReplayResult::Prompt PromptFidelity::mean() const {
  const auto n = static_cast<double>(queries_);
  return {mass_ / n, rel_err_ / n, pairs_ / causal_};
}

}  // namespace kvlab
