#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/kv_rows.h"
#include "kernels/ops.h"

namespace kvlab {

// Keys of largest product with a query: a hierarchical navigable small-world graph (Malkov and Yashunin 2018) by hnswlib, one per row. One
// thread and a fixed seed: equal keys in equal order give an equal graph.
class AnnIndex {
 public:
  struct Sizes {
    std::int32_t links = 16, build_candidates = 200;  // edges per node and layer; candidates at insertion
  };
  AnnIndex(std::int32_t head_dim, Sizes sizes);
  ~AnnIndex();
  void add(std::int32_t token, const float* key);
  // At most `count` tokens, ascending, out of `candidates` >= count; and the number of keys visited.
  std::pair<std::vector<std::int32_t>, std::int64_t> search(const float* query, std::int32_t count, std::int32_t candidates) const;

 private:
  struct Graph;
  std::unique_ptr<Graph> graph_;
};

// Tokens [from[r], to[r]) of each row; fresh[r] = 1 begins a new index.
struct AnnAdd {
  KvRows kv;
  AnnIndex::Sizes sizes;
  const std::int32_t *from = nullptr, *to = nullptr, *fresh = nullptr;  // [kv.num_rows]
  std::unique_ptr<AnnIndex>* const* index = nullptr;                    // [kv.num_rows]
};
// Priced as if each insertion visited its candidates and twice the links, for any graph size.
OpCall call(const AnnAdd&);
void run_cpu(const AnnAdd&);

// Per query head at most keep[r] tokens, ascending; the graph may find fewer.
struct AnnSearch {
  KvRows kv;
  const Queries* queries = nullptr;    // [kv.num_sequences()], the last of each
  const std::int32_t* keep = nullptr;  // [kv.num_rows]
  std::int32_t candidates = 0;         // at least keep
  const std::unique_ptr<AnnIndex>* const* index = nullptr;
  const std::int64_t* index_first = nullptr;  // [kv.num_rows * kv.group + 1] lists with space for keep[r]
  std::int32_t* found = nullptr;              // out
  std::int32_t* count = nullptr;              // [kv.num_rows * kv.group] in: capacity; out: length
  std::int32_t* visits = nullptr;             // [kv.num_rows] out: keys visited, over the heads; in: an upper bound
};
// Prices the written lists without the visited keys.
OpCall call(const AnnSearch&);
void run_cpu(const AnnSearch&);

}  // namespace kvlab
