#include <algorithm>
#include <vector>

#include "kernels/dot_cpu.h"
#include "policies/kv/selector/halving_search/halving_search.h"

namespace kvlab {

namespace {

struct Group {
  std::int32_t begin, end;  // blocks
  float score;
};

float judge(const HalvingSearch& a, std::int32_t row, const Group& g) {
  const std::int32_t token = a.base[row] + (g.begin + g.end) * a.block_tokens / 2;
  const Queries& q = a.queries[a.kv.sequence(row)];
  const std::int64_t d = a.kv.head_dim;
  const float* heads = q.data + (static_cast<std::int64_t>(q.count - 1) * a.kv.kv_heads + row % a.kv.kv_heads) * a.kv.group * d;
  float sum = 0.0F;
  for (std::int32_t h = 0; h < a.kv.group; ++h) sum += lane_dot(heads + h * d, a.kv.key(row, token), d);
  return sum;
}

void run_row(const HalvingSearch& a, std::int32_t row) {
  const std::int64_t n = a.blocks[row], keep = a.keep[row];
  std::vector<Group> groups, halves;
  for (std::int64_t g = 0; g < keep; ++g)
    groups.push_back({static_cast<std::int32_t>(g * n / keep), static_cast<std::int32_t>((g + 1) * n / keep), 0.0F});
  for (std::int32_t round = 0; round < a.rounds(row); ++round) {
    halves.clear();
    for (const Group& g : groups) {
      const std::int32_t middle = g.begin + (g.end - g.begin) / 2;
      if (middle > g.begin) halves.push_back({g.begin, middle, 0.0F});
      halves.push_back({middle, g.end, 0.0F});
    }
    for (Group& g : halves) g.score = judge(a, row, g);
    std::stable_sort(halves.begin(), halves.end(), [](const Group& x, const Group& y) { return x.score > y.score; });
    halves.resize(static_cast<std::size_t>(keep));
    std::sort(halves.begin(), halves.end(), [](const Group& x, const Group& y) { return x.begin < y.begin; });
    groups.swap(halves);
  }
  for (std::int64_t g = 0; g < keep; ++g) a.block[a.first[row] + g] = groups[static_cast<std::size_t>(g)].begin;
}

}  // namespace

void run_cpu(const HalvingSearch& a) {
  for (std::int32_t r = 0; r < a.kv.num_rows; ++r) run_row(a, r);
}

}  // namespace kvlab
