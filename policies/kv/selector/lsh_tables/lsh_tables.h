#pragma once

#include <cstdint>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

// Hashing by the signs of random projections (Charikar 2002). A key is sampled if it is in the query's bucket in at least two tables.
// MagicPIG, section 4.
namespace kvlab {

struct LshShape {
  std::int32_t bits = 10, tables = 150;  // bits of a bucket number, at most 16
  [[nodiscard]] std::int64_t projections() const { return static_cast<std::int64_t>(bits) * tables; }
  [[nodiscard]] std::int64_t buckets() const { return std::int64_t{1} << bits; }
  // Per table the ends of its buckets, then key numbers bucket by bucket.
  [[nodiscard]] std::int64_t table_size(std::int64_t keys) const { return tables * (buckets() + keys); }
  // 1 - (1 - w^K)^L - L w^K (1 - w^K)^(L - 1) for K bits, L tables and w = 1 - acos(cosine) / pi.
  [[nodiscard]] double sampling_probability(double cosine) const;
};

// The mean of keys [begin[r], end[r]) of each row, and tables of these keys less their mean; key numbers from begin[r] on.
struct LshBuild {
  KvRows kv;
  LshShape shape;
  const float* projections = nullptr;                   // [shape.projections(), head_dim]
  const std::int32_t *begin = nullptr, *end = nullptr;  // [kv.num_rows] begin >= end: the row is unchanged
  float* const* center = nullptr;                       // [kv.num_rows] -> [head_dim] out
  std::int32_t* const* table = nullptr;                 // [kv.num_rows] -> [shape.table_size(end - begin)] out
};
OpCall call(const LshBuild&);
void run_cpu(const LshBuild&);

// Ascending numbers of keys that any query head of the row samples.
struct LshSample {
  KvRows kv;
  LshShape shape;
  const Queries* queries = nullptr;  // [kv.num_sequences()], the last of each
  const float* projections = nullptr;
  const std::int32_t* keys = nullptr;                   // keys in the table
  const std::int32_t* const* table = nullptr;           // [kv.num_rows]
  const std::int64_t* first = nullptr;                  // [kv.num_rows + 1] lists with space for keys[r]
  std::int32_t* unit = nullptr;                         // out
  std::uint32_t* heads = nullptr;                       // as unit: bit g is set if query head g of the group samples it
  std::int32_t *count = nullptr, *looked_at = nullptr;  // [kv.num_rows] in: bounds; out: length, keys found in buckets
};
// Without the buckets' content.
OpCall call(const LshSample&);
void run_cpu(const LshSample&);

// Importance weights: -log(p + 1e-4) for a key that a query head sampled with probability p, -infinity for one that only others sampled, 0
// for tokens that are always there. p follows from the cosine of the query and the key less the center.
struct LshWeights {
  KvRows kv;
  LshShape shape;
  const Queries* queries = nullptr;
  const float* const* center = nullptr;       // [kv.num_rows]
  UnitLists sample;                           // of LshSample
  const std::uint32_t* heads = nullptr;       // as in LshSample
  const std::int64_t* index_first = nullptr;  // [kv.num_rows + 1]
  const std::int32_t* index = nullptr;        // head[r] tokens, those of the sample, then others
  const std::int32_t* head = nullptr;         // [kv.num_rows]
  float* log_weight = nullptr;                // [index_first[kv.num_rows], kv.group] out
};
OpCall call(const LshWeights&);
void run_cpu(const LshWeights&);

}  // namespace kvlab
