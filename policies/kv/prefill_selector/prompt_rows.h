#pragma once

#include <vector>

#include "kernels/attention/chosen_prefill/chosen_prefill.h"
#include "policies/kv/prefill_selector/prefill_selector.h"

namespace kvlab {

// k, v [tokens, kv_heads, head_dim], without positions. Scratch of the current Frame.
// A page is one token of a head, so that nothing is copied.
inline KvRows dense_rows(Ops& ops, const ModelShape& m, std::int32_t tokens, const float* k, const float* v) {
  const std::int64_t slots = std::int64_t{tokens} * m.kv_heads;
  std::int32_t *len = ops.host_ints(m.kv_heads), *page_begin = ops.host_ints(m.kv_heads), *page = ops.host_ints(slots);
  std::int64_t* first = ops.host_longs(m.kv_heads + 1);
  first[0] = 0;
  for (std::int32_t h = 0; h < m.kv_heads; ++h) {
    len[h] = tokens, page_begin[h] = h * tokens, first[h + 1] = first[h] + tokens;
    for (std::int32_t i = 0; i < tokens; ++i) page[h * tokens + i] = i * m.kv_heads + h;
  }
  KvRows kv;
  kv.num_rows = kv.kv_heads = m.kv_heads, kv.group = m.group(), kv.head_dim = m.head_dim, kv.kv_bytes = m.kv_bytes;
  kv.len = len, kv.first = first, kv.page_begin = page_begin, kv.page = page, kv.page_tokens = 1, kv.pool_tokens = slots;
  kv.k = const_cast<float*>(k), kv.v = const_cast<float*>(v);  // NOLINT: operations on them only read
  return kv;
}

// A prompt's first `tokens` keys and values, with zero `words` statistics per token; position i is token i. Scratch of the current Frame.
inline KvRows prompt_rows(const PromptChunk& chunk, std::int32_t tokens, std::int32_t words = 0) {
  Ops& ops = chunk.ops;
  KvRows kv = dense_rows(ops, chunk.model, tokens, chunk.k, chunk.v);
  std::vector<std::int32_t> position;
  for (std::int32_t slot = 0; slot < kv.pool_tokens; ++slot) position.push_back(slot / kv.kv_heads);
  kv.position = ops.ints(kv.pool_tokens);
  if (kv.position != nullptr) chunk.memory.from_host(kv.position, position.data(), 4 * kv.pool_tokens);
  kv.num_words = words;
  float* const statistics = ops.floats(words * kv.pool_tokens);
  ops.zero(statistics, words * kv.pool_tokens);
  kv.words = reinterpret_cast<std::uint32_t*>(statistics);
  return kv;
}

// At positions [begin, end).
inline Queries prompt_queries(const PromptChunk& chunk, std::int32_t begin, std::int32_t end) {
  const std::int64_t width = std::int64_t{chunk.model.q_heads} * chunk.model.head_dim;
  return {chunk.q == nullptr ? nullptr : chunk.q + (begin - chunk.seq.seen_tokens) * width, end - begin, begin};
}

// All inputs but the choice.
inline ChosenPrefill chosen_prefill(const PromptChunk& chunk) {
  const ModelShape& m = chunk.model;
  ChosenPrefill op;
  op.q = chunk.q, op.k = chunk.k, op.v = chunk.v, op.out = chunk.out, op.log_sum = chunk.log_sum;
  op.new_tokens = chunk.seq.new_tokens, op.kv_before = chunk.seq.seen_tokens;
  op.q_heads = m.q_heads, op.kv_heads = m.kv_heads, op.head_dim = m.head_dim, op.window = chunk.window;
  op.activation_bytes = op.kv_bytes = m.kv_bytes;
  return op;
}

}  // namespace kvlab
