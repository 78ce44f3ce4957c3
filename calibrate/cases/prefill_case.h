#pragma once

#include <cmath>
#include <span>
#include <vector>

#include "calibrate/cases/model_checks.h"

// Dense (AttentionPrefill) or over listed keys (SparsePrefill).
namespace kvlab {

// Axes new, before, q_heads, kv_heads and head_dim; draws q, k and v.
template <class Prefill>
void take_prefill_operands(Buffers& activations, const Shape& s, Prefill& a) {
  a.new_tokens = s.at("new"), a.kv_before = s.at("before"), a.q_heads = s.at("q_heads"), a.kv_heads = s.at("kv_heads");
  a.head_dim = s.at("head_dim");
  const std::int64_t q = a.new_tokens * a.q_heads * a.head_dim, kv = (a.kv_before + a.new_tokens) * a.kv_heads * a.head_dim;
  a.q = activations.floats(q), a.k = activations.floats(kv), a.v = activations.floats(kv), a.out = activations.template room<float>(q);
  a.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(a.head_dim)));
}

// Query t of head h over the keys at positions `seen`.
template <class Prefill>
void add_prefill_error(TimedDevice& device, const Prefill& a, std::int64_t t, std::int64_t h, std::span<const std::int64_t> seen,
                       RelativeError& error) {
  const std::int64_t d = a.head_dim, g = h * a.kv_heads / a.q_heads, at = (t * a.q_heads + h) * d;
  std::vector<float> k, v;
  for (const std::int64_t i : seen) {
    const std::vector<float> key = read_floats(device, a.k + (i * a.kv_heads + g) * d, d),
                             value = read_floats(device, a.v + (i * a.kv_heads + g) * d, d);
    k.insert(k.end(), key.begin(), key.end()), v.insert(v.end(), value.begin(), value.end());
  }
  add_attention_error(read_floats(device, a.q + at, d), k, v, std::ssize(seen), wide(a.scale), read_floats(device, a.out + at, d), error);
}

}  // namespace kvlab
