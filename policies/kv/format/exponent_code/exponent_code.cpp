#include "policies/kv/format/exponent_code/exponent_code.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <tuple>
#include <vector>

#include "base/half.h"

namespace kvlab {

namespace {

std::size_t exponent_of(float x) { return float_to_bfloat16(x) >> 7U & 0xffU; }

std::int64_t row_code_bytes(const ListedTokens& tokens, std::int32_t row, const std::array<std::int32_t, 256>& length) {
  const std::int32_t n = tokens.count(row), d = tokens.kv.head_dim;
  std::int64_t bytes = 0;
  for (std::int32_t begin = 0; begin < n; begin += kExponentBlock) {
    std::int64_t bits = 0;
    for (std::int32_t i = begin; i < std::min(n, begin + kExponentBlock); ++i)
      for (std::int32_t c = 0; c < d; ++c) bits += 8 + length[exponent_of(tokens.at(row, i)[c])];
    bytes += (bits + 7) / 8 + 4;
  }
  return bytes;
}

}  // namespace

void huffman_lengths(const std::int64_t* count, std::int32_t* length) {
  struct Node {
    int left = -1, right = -1;
  };
  std::vector<Node> nodes(256);
  using Item = std::pair<std::int64_t, int>;  // count, then the older node first: one code for one set of counts
  std::priority_queue<Item, std::vector<Item>, std::greater<>> queue;
  for (int s = 0; s < 256; ++s) {
    length[s] = 0;
    if (count[s] > 0) queue.emplace(count[s], s);
  }
  if (queue.size() == 1) length[queue.top().second] = 1;
  if (queue.size() <= 1) return;
  while (queue.size() > 1) {
    const Item a = queue.top();
    queue.pop();
    const Item b = queue.top();
    queue.pop();
    nodes.push_back({a.second, b.second});
    queue.emplace(a.first + b.first, static_cast<int>(nodes.size()) - 1);
  }
  std::vector<std::int32_t> depth(nodes.size(), 0);
  for (std::size_t n = nodes.size() - 1; n >= 256; --n)  // parents come after their children
    for (const int child : {nodes[n].left, nodes[n].right}) {
      depth[static_cast<std::size_t>(child)] = depth[n] + 1;
      if (child < 256) length[child] = depth[n] + 1;
    }
}

OpCall call(const ExponentCode& a) {
  const std::int64_t n = a.tokens.total(), d = a.tokens.kv.head_dim;
  return {.op = "exponent_code",
          .rows = a.tokens.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = 2 * a.tokens.dense_bytes() + 2 * a.tokens.list_bytes() + (11 * n * d + 7) / 8,
          .flops = 4 * n * d};
}
KVLAB_WITHOUT_CUDA(ExponentCode)

void run_cpu(const ExponentCode& a) {
  const KvRows& kv = a.tokens.kv;
  for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
    std::array<std::int64_t, 256> count{};
    std::array<std::int32_t, 256> length{};
    std::int64_t tokens = 0;
    for (std::int32_t r = s * kv.kv_heads; r < (s + 1) * kv.kv_heads; ++r) {
      const std::int32_t n = a.tokens.entries(r) > 0 ? a.tokens.count(r) : 0;
      tokens += n;
      for (std::int32_t i = 0; i < n; ++i)
        for (std::int32_t c = 0; c < kv.head_dim; ++c) ++count[exponent_of(a.tokens.at(r, i)[c])];
    }
    if (tokens == 0) continue;
    huffman_lengths(count.data(), length.data());
    a.bytes[s * kv.kv_heads] += kExponentTable;
    for (std::int32_t r = s * kv.kv_heads; r < (s + 1) * kv.kv_heads; ++r)
      if (a.tokens.entries(r) > 0) a.bytes[r] += static_cast<std::int32_t>(row_code_bytes(a.tokens, r, length));
  }
}

}  // namespace kvlab
