#include <algorithm>
#include <cmath>
#include <vector>

#include "base/parallel.h"
#include "kernels/dot_cpu.h"
#include "kernels/select/nearest_keys/nearest_keys.h"

namespace kvlab {

namespace {

struct Found {
  float product;
  std::int32_t token;
};

bool nearer(const Found& a, const Found& b) { return a.product != b.product ? a.product > b.product : a.token < b.token; }

}  // namespace

void run_cpu(const NearestKeys& a) {
  const std::int64_t d = a.kv.head_dim;
  for_each_in_parallel(a.kv.num_rows, [&](std::int64_t row) {
    const auto r = static_cast<std::int32_t>(row);
    if (a.keep[r] <= 0) return;
    std::vector<Found> all;
    const Queries& queries = a.queries[a.kv.sequence(r)];
    const float* q0 = queries.data + (static_cast<std::int64_t>(queries.count - 1) * a.kv.kv_heads + r % a.kv.kv_heads) * a.kv.group * d;
    for (std::int32_t h = 0; h < a.kv.group; ++h) {
      all.clear();
      for (std::int32_t i = a.begin[r]; i < a.end[r]; ++i) all.push_back({lane_dot(q0 + h * d, a.kv.key(r, i), d), i});
      std::nth_element(all.begin(), all.begin() + (a.keep[r] - 1), all.end(), nearer);
      std::int32_t* out = a.index + a.index_first[static_cast<std::int64_t>(r) * a.kv.group + h];
      for (std::int32_t i = 0; i < a.keep[r]; ++i) out[i] = all[static_cast<std::size_t>(i)].token;
      std::sort(out, out + a.keep[r]);
    }
  });
}

}  // namespace kvlab
