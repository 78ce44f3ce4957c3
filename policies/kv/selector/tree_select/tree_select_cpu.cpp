#include <algorithm>
#include <cmath>
#include <queue>
#include <vector>

#include "kernels/lanes_cpu.h"
#include "policies/kv/selector/tree_select/tree_select.h"

namespace kvlab {

namespace {

struct Node {
  float bound;
  std::int32_t level;
  std::int64_t at;  // in its level
  [[nodiscard]] std::int64_t first_leaf() const { return at << level; }
  // A parent's bound is never below its child's, in floating point too. Parents come first among equals, so that all equal leaves are known
  // before one is taken.
  friend bool operator<(const Node& a, const Node& b) {
    if (a.bound != b.bound) return a.bound < b.bound;
    if ((a.level > 0) != (b.level > 0)) return b.level > 0;
    return a.first_leaf() > b.first_leaf();
  }
};

float bound_of(const TreeSelect& a, std::int32_t row, std::int32_t level, std::int64_t at) {
  const std::int64_t d = a.head_dim;
  const Queries& queries = a.queries[row / a.kv_heads];
  const float* q0 = queries.data + (static_cast<std::int64_t>(queries.count - 1) * a.kv_heads + row % a.kv_heads) * a.group * d;
  const float* low = a.bounds[static_cast<std::int64_t>(level) * a.num_rows + row] + at * 2 * d;
  float best = 0;
  for (std::int32_t h = 0; h < a.group; ++h) {
    Lanes sum = Lanes::Zero();
    for (std::int64_t c = 0; c < d; c += kLanes) {
      const Lanes q = load(q0 + h * d + c, d - c);
      sum += (q * load(low + c, d - c)).max(q * load(low + d + c, d - c));
    }
    best = h == 0 ? sum.sum() : std::max(best, sum.sum());
  }
  return best;
}

void search(const TreeSelect& a, std::int32_t row) {
  const auto nodes = [&](std::int32_t level) { return (a.leaves[row] + (std::int64_t{1} << level) - 1) >> level; };
  std::priority_queue<Node> open;
  const auto add = [&](std::int32_t level, std::int64_t at) { open.push({bound_of(a, row, level, at), level, at}); };
  for (std::int64_t p = 0; p < nodes(a.levels - 1); ++p) add(a.levels - 1, p);
  std::int32_t* out = a.index + a.index_first[row];
  for (std::int32_t taken = 0; taken < a.keep[row];) {
    const Node top = open.top();
    open.pop();
    if (top.level == 0) {
      out[taken++] = static_cast<std::int32_t>(top.at);
      continue;
    }
    for (std::int64_t child = 2 * top.at; child < std::min(2 * top.at + 2, nodes(top.level - 1)); ++child) add(top.level - 1, child);
  }
  std::sort(out, out + a.keep[row]);
}

}  // namespace

void run_cpu(const MergeBounds& a) {
  const std::int64_t d = a.head_dim;
  for (std::int32_t r = 0; r < a.num_rows; ++r) {
    for (std::int64_t p = a.from[r] / 2; 2 * p < a.children[r] && a.from[r] < a.children[r]; ++p) {
      const float* left = a.child[r] + 2 * p * 2 * d;
      const float* right = 2 * p + 1 < a.children[r] ? left + 2 * d : left;
      float* out = a.parent[r] + p * 2 * d;
      for (std::int64_t c = 0; c < d; ++c) out[c] = std::min(left[c], right[c]);
      for (std::int64_t c = d; c < 2 * d; ++c) out[c] = std::max(left[c], right[c]);
    }
  }
}

void run_cpu(const TreeSelect& a) {
  for (std::int32_t r = 0; r < a.num_rows; ++r)
    if (a.keep[r] > 0) search(a, r);
}

}  // namespace kvlab
