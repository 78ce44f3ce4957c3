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

template <class F>
void for_each_code(const CodeVectors& a, F&& f) {
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

OpCall cost_to_fit(const CodeVectors& a) {
  const KvRows& kv = a.tokens.kv;
  std::int64_t n = 0, rows = 0;
  for (std::int32_t r = 0; r < kv.num_rows; ++r)
    if (a.tables.line[r] >= 0) n += kv.len[r], ++rows;
  return {.op = "fit_vectors",
          .rows = rows,
          .tokens = n,
          .outputs = rows,
          .bytes = n * kv.head_dim * kv.kv_bytes + 4 * rows * a.code->num_parameters(kv.head_dim),
          .flops = n * a.code->fit_flops(kv.head_dim)};
}

struct RowVectors {
  std::vector<float> x;
  std::vector<std::int32_t> positions;

  void append(const KvRows& kv, bool values, std::int32_t row) {
    const auto d = static_cast<std::size_t>(kv.head_dim);
    for (std::int32_t token = 0; token < kv.len[row]; ++token) {
      const float* const from = values ? kv.value(row, token) : kv.key(row, token);
      x.insert(x.end(), from, from + d);
      positions.push_back(kv.position[kv.slot(row, token)]);
    }
  }
};

void fit(const CodeVectors& a) {
  const KvRows& kv = a.tokens.kv;
  const std::int32_t width = a.code->num_parameters(kv.head_dim), together = a.code->fits_all_heads() ? kv.kv_heads : 1;
  for_each_in_parallel(kv.num_rows / together, [&](std::int64_t i) {
    const auto first = static_cast<std::int32_t>(i) * together;
    if (a.tables.line[first] < 0) return;
    RowVectors all;
    for (std::int32_t r = first; r < first + together; ++r) all.append(kv, a.tokens.values, r);
    const auto parameters = [&](std::int32_t r) { return a.tables.parameters + std::int64_t{a.tables.line[r]} * width; };
    a.code->fit(all.x, kv.head_dim, all.positions, place_of(kv, first, width, a.tables).frequencies, parameters(first));
    for (std::int32_t r = first + 1; r < first + together; ++r) std::copy_n(parameters(first), width, parameters(r));
  });
}

}  // namespace

OpCall call(const CodeVectors& a) {
  const std::int32_t d = a.tokens.kv.head_dim;
  if (a.kind == CodeVectors::Kind::kFit) return cost_to_fit(a);
  if (a.kind == CodeVectors::Kind::kEncode) return cost_of(a.tokens, *a.code, a.code->encode_name(), a.code->encode_flops(d));
  return cost_of(a.tokens, *a.code, a.code->decode_name(), a.code->decode_flops(d));
}

void run_cpu(const CodeVectors& a) {
  const std::int32_t d = a.tokens.kv.head_dim;
  if (a.kind == CodeVectors::Kind::kFit) return fit(a);
  for_each_code(a, [&](float* x, const VectorCode::Place& place, std::uint8_t* code) {
    a.kind == CodeVectors::Kind::kEncode ? a.code->encode(x, d, place, code) : a.code->decode(code, d, place, x);
  });
}

void stored_arrays(CodeVectors& a, StoredArrays& arrays) {
  const std::int32_t d = a.tokens.kv.head_dim;
  arrays.rows(a.packed, [&](std::int64_t entries) { return entries * a.code->bytes(d); });
  if (a.code->num_parameters(d) > 0) arrays.lines(a.tables.parameters, a.tables.line, a.code->num_parameters(d));
  arrays.sequences(a.tables.frequencies, d / 2, false);
}

bool goes_on(const CodeVectors& a, const CodeVectors& later, std::span<const RowList>) { return a.code == later.code; }

}  // namespace kvlab
