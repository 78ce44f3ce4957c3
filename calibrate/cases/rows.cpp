#include "calibrate/cases/rows.h"

#include <numeric>

#include "base/ceil_div.h"

namespace kvlab {

namespace {

constexpr std::int32_t kPageTokens = 16;

std::int64_t value_or(const Shape& shape, const std::string& key, std::int64_t otherwise) {
  const auto at = shape.find(key);
  return at == shape.end() ? otherwise : at->second;
}

}  // namespace

RowsSpec rows_spec(const Shape& shape) {
  RowsSpec spec;
  spec.batch = value_or(shape, "batch", 1);
  spec.kv_heads = shape.at("kv_heads");
  spec.group = value_or(shape, "q_heads", spec.kv_heads) / spec.kv_heads;
  spec.len = shape.at("len");
  spec.head_dim = shape.at("head_dim");
  return spec;
}

std::int64_t* equal_rows(Buffers& buffers, std::int64_t rows, std::int64_t each) {
  std::vector<std::int64_t> first;
  for (std::int64_t r = 0; r <= rows; ++r) first.push_back(r * each);
  return buffers.host(std::move(first));
}

std::int32_t* equal_counts(Buffers& buffers, std::int64_t rows, std::int64_t count) {
  return buffers.host(std::vector<std::int32_t>(static_cast<std::size_t>(rows), static_cast<std::int32_t>(count)));
}

KvRows paged_rows(Buffers& buffers, const RowsSpec& spec) {
  const std::int64_t rows = spec.batch * spec.kv_heads, each = ceil_div(spec.len, kPageTokens);
  KvRows kv;
  kv.num_rows = static_cast<std::int32_t>(rows), kv.kv_heads = static_cast<std::int32_t>(spec.kv_heads);
  kv.group = static_cast<std::int32_t>(spec.group), kv.head_dim = static_cast<std::int32_t>(spec.head_dim);
  kv.kv_bytes = static_cast<std::int32_t>(element_bytes(buffers.type())), kv.type = buffers.type();
  kv.page_tokens = kPageTokens;
  kv.pool_tokens = rows * each * kPageTokens;
  kv.len = equal_counts(buffers, rows, spec.len), kv.first = equal_rows(buffers, rows, spec.len);
  std::vector<std::int32_t> page = shuffled(buffers, rows * each), begin;
  for (std::int64_t r = 0; r < rows; ++r) begin.push_back(static_cast<std::int32_t>(r * each));
  kv.page = buffers.host(std::move(page)), kv.page_begin = buffers.host(std::move(begin));
  kv.k = static_cast<float*>(buffers.elements(kv.pool_tokens * spec.head_dim));
  kv.v = static_cast<float*>(buffers.elements(kv.pool_tokens * spec.head_dim));
  std::vector<std::int32_t> position(static_cast<std::size_t>(kv.pool_tokens));
  for (std::int32_t r = 0; r < kv.num_rows; ++r)
    for (std::int32_t i = 0; i < kv.len[r]; ++i) nth(position, kv.slot(r, i)) = i;
  kv.position = buffers.put(position);
  return kv;
}

ListedTokens all_tokens(Buffers& buffers, const Shape& s) {
  ListedTokens tokens;
  tokens.kv = paged_rows(buffers, rows_spec(s));
  tokens.first = tokens.kv.first;
  std::vector<std::int32_t> index;
  for (std::int32_t r = 0; r < tokens.kv.num_rows; ++r)
    for (std::int32_t i = 0; i < tokens.kv.len[r]; ++i) index.push_back(i);
  tokens.index = buffers.put(index);
  return tokens;
}

Queries* queries_at_end(Buffers& buffers, const KvRows& kv, std::int32_t count) {
  std::vector<Queries> queries;
  for (std::int32_t s = 0; s < kv.num_sequences(); ++s)
    queries.push_back(
        {buffers.activations().floats(std::int64_t{count} * kv.kv_heads * kv.group * kv.head_dim), count, kv.len[s * kv.kv_heads] - count});
  return buffers.host(std::move(queries));
}

std::vector<float> row_vectors(TimedDevice& device, const KvRows& kv, std::int64_t row, bool values) {
  const auto* from = reinterpret_cast<const char*>(values ? kv.v : kv.k);
  std::vector<float> all;
  for_each_run(kv, static_cast<std::int32_t>(row), [&](const KvRun& run) {
    const std::vector<float> part =
        read_floats(device, from + run.slot * kv.head_dim * element_bytes(kv.type), std::int64_t{run.count} * kv.head_dim, kv.type);
    all.insert(all.end(), part.begin(), part.end());
  });
  return all;
}

}  // namespace kvlab
