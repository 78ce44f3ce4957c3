#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/transformer.h"

namespace kvlab {

// Per layer and KV head the main direction of its group's queries after RoPE, over the texts: the top right-singular vector u of the
// stacked queries, with the sign that makes the mean of q.u positive. Q-Filters, Godey et al. 2025, arXiv:2503.02812. Returned is -u
// [layers * kv_heads * head_dim], the sign in which filters are published. Deterministic. Error (InputError): no token.
std::vector<float> query_filters(const Transformer& model, std::span<const std::vector<std::int32_t>> texts);

// Writes tensor q_filters [layers, kv_heads, head_dim].
void write_query_filters(const std::string& path, const ModelConfig& model, std::int64_t tokens, const std::vector<float>& filters);

}  // namespace kvlab
