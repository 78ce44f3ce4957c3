#include "kernels/storage/vector_code/vector_code.h"

#include <algorithm>
#include <vector>

#include "base/parallel.h"
#include "kernels/storage/stored/stored_code.h"

namespace kvlab {

namespace {

VectorCode::Place place_of(const KvRows& kv, std::int32_t row, std::int32_t num_parameters, const VectorTables& tables) {
  VectorCode::Place place;
  place.head = row % kv.kv_heads;
  if (num_parameters > 0) place.parameters = tables.parameters + std::int64_t{tables.line[row]} * num_parameters;
  if (tables.frequencies != nullptr) place.frequencies = tables.frequencies + std::int64_t{kv.sequence(row)} * (kv.head_dim / 2);
  return place;
}

OpCall cost_of(const ListedTokens& tokens, const VectorCode& code, std::string_view name, std::int64_t flops) {
  const std::int64_t n = tokens.total(), parameters = 4LL * tokens.kv.num_rows * code.num_parameters(tokens.kv.head_dim);
  return {.op = name,
          .rows = tokens.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = tokens.dense_bytes() + tokens.list_bytes() + n * code.bytes(tokens.kv.head_dim) + parameters,
          .flops = n * flops};
}

// Calls f(vector, place, its code) for each listed vector.
template <class Op, class F>
void for_each_code(const Op& a, F&& f) {
  const KvRows& kv = a.tokens.kv;
  const std::int64_t bytes = a.code->bytes(kv.head_dim);
  for_each_in_parallel(kv.num_rows, [&](std::int64_t i) {
    const auto r = static_cast<std::int32_t>(i);
    if (a.tokens.entries(r) == 0) return;
    VectorCode::Place place = place_of(kv, r, a.code->num_parameters(kv.head_dim), a.tables);
    const std::int32_t tokens = a.tokens.count(r);
    for (std::int32_t t = 0; t < tokens; ++t) {
      const std::int64_t at = a.tokens.first[r] + t;
      place.position = kv.position[kv.slot(r, a.tokens.index[at])];
      f(a.tokens.at(r, t), place, a.packed + at * bytes);
    }
  });
}

}  // namespace

OpCall call(const FitVectors& a) {
  std::int64_t n = 0, rows = 0;
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r)
    if (a.tables.line[r] >= 0) n += a.kv.len[r], ++rows;
  return {.op = "fit_vectors",
          .rows = rows,
          .tokens = n,
          .outputs = rows,
          .bytes = n * a.kv.head_dim * a.kv.kv_bytes + 4 * rows * a.code->num_parameters(a.kv.head_dim),
          .flops = n * a.code->fit_flops(a.kv.head_dim)};
}

void run_cpu(const FitVectors& a) {
  const auto d = static_cast<std::size_t>(a.kv.head_dim);
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t i) {
    const auto r = static_cast<std::int32_t>(i);
    if (a.tables.line[r] < 0) return;
    const auto n = static_cast<std::size_t>(a.kv.len[r]);
    std::vector<float> x(n * d);
    std::vector<std::int32_t> positions(n);
    for (std::size_t t = 0; t < n; ++t) {
      const auto token = static_cast<std::int32_t>(t);
      std::copy_n(a.values ? a.kv.value(r, token) : a.kv.key(r, token), d, x.data() + t * d);
      positions[t] = a.kv.position[a.kv.slot(r, token)];
    }
    const std::int32_t width = a.code->num_parameters(a.kv.head_dim);
    a.code->fit(x, a.kv.head_dim, positions, place_of(a.kv, r, width, a.tables).frequencies,
                a.tables.parameters + std::int64_t{a.tables.line[r]} * width);
  });
}

OpCall call(const EncodeVectors& a) {
  return cost_of(a.tokens, *a.code, a.code->encode_name(), a.code->encode_flops(a.tokens.kv.head_dim));
}

void run_cpu(const EncodeVectors& a) {
  for_each_code(
      a, [&](const float* x, const VectorCode::Place& place, std::uint8_t* code) { a.code->encode(x, a.tokens.kv.head_dim, place, code); });
}

OpCall call(const DecodeVectors& a) {
  return cost_of(a.tokens, *a.code, a.code->decode_name(), a.code->decode_flops(a.tokens.kv.head_dim));
}

void run_cpu(const DecodeVectors& a) {
  for_each_code(
      a, [&](float* x, const VectorCode::Place& place, const std::uint8_t* code) { a.code->decode(code, a.tokens.kv.head_dim, place, x); });
}

void stored_arrays(DecodeVectors& a, StoredArrays& arrays) {
  const std::int32_t d = a.tokens.kv.head_dim;
  arrays.rows(a.packed, [&](std::int64_t entries) { return entries * a.code->bytes(d); });
  if (a.code->num_parameters(d) > 0) arrays.lines(a.tables.parameters, a.tables.line, a.code->num_parameters(d));
  arrays.sequences(a.tables.frequencies, d / 2, false);
}

bool goes_on(const DecodeVectors& a, const DecodeVectors& later, std::span<const RowList>) { return a.code == later.code; }

}  // namespace kvlab
