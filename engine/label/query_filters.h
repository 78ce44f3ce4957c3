#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/transformer.h"

namespace kvlab {

// Q-Filters (Godey et al. 2025, arXiv:2503.02812): -u [layers * kv_heads * head_dim], u the top right-singular vector of a KV head's
// post-RoPE queries with mean q.u > 0. Deterministic. Throws InputError without tokens.
std::vector<float> query_filters(const Transformer& model, std::span<const std::vector<std::int32_t>> texts);

// Tensor q_filters [layers, kv_heads, head_dim].
void write_query_filters(const std::string& path, const ModelConfig& model, std::int64_t tokens, const std::vector<float>& filters);

}  // namespace kvlab
