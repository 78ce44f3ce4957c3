#include "policies/kv/format/exponent_code/exponent_code.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <vector>

#include "base/ceil_div.h"
#include "base/half.h"
#include "kernels/storage/stored/stored_code.h"
#include "policies/kv/format/exponent_code/exponent_block.h"

namespace kvlab {

void huffman_lengths(const std::int64_t* count, std::int32_t* length) {
  struct Node {
    int left = -1, right = -1;
  };
  std::vector<Node> nodes(256);
  using Item = std::pair<std::int64_t, int>;  // count, then the older node first
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
  const std::int64_t passes = a.unpacks ? 1 : 2;
  return {.op = a.unpacks ? "exponent_decode" : "exponent_code",
          .rows = a.tokens.kv.num_rows,
          .tokens = n,
          .outputs = n,
          .bytes = passes * (a.tokens.dense_bytes() + a.tokens.list_bytes()) + (11 * n * d + 7) / 8,
          .flops = 4 * n * d};
}
KVLAB_WITHOUT_CUDA(ExponentCode)

std::int64_t most_exponent_bytes(const ListedTokens& tokens) {
  std::int64_t blocks = 0;
  for (std::int32_t r = 0; r < tokens.kv.num_rows; ++r) blocks += ceil_div(std::int64_t{tokens.entries(r)}, kExponentBlock);
  return 2 * tokens.total() * tokens.kv.head_dim + 5 * blocks;
}

namespace {

std::size_t exponent_of(float x) { return static_cast<std::size_t>(exponent_bits(float_to_bfloat16(x))); }

// With its offset.
std::int64_t block_bytes(const ListedTokens& tokens, std::int32_t row, std::int32_t begin, std::int32_t end, const std::uint8_t* length) {
  std::int64_t bits = 0;
  for (std::int32_t i = begin; i < end; ++i)
    for (std::int32_t c = 0; c < tokens.kv.head_dim; ++c) bits += 8 + length[exponent_of(tokens.at(row, i)[c])];
  return (bits + 7) / 8 + 4;
}

// Calls f(block, begin, end).
template <class F>
void for_each_block(std::int32_t n, F&& f) {
  for (std::int32_t begin = 0; begin < n; begin += kExponentBlock) f(begin / kExponentBlock, begin, std::min(n, begin + kExponentBlock));
}

std::int64_t row_code_bytes(const ListedTokens& tokens, std::int32_t row, const std::uint8_t* length) {
  std::int64_t bytes = 0;
  for_each_block(tokens.count(row),
                 [&](std::int32_t, std::int32_t begin, std::int32_t end) { bytes += block_bytes(tokens, row, begin, end, length); });
  return bytes;
}

void write_row(const ListedTokens& tokens, std::int32_t row, const PrefixCode& code, std::uint8_t* packed) {
  const std::int32_t d = tokens.kv.head_dim, n = tokens.count(row);
  std::uint8_t* to = packed + 4 * ceil_div(std::int64_t{n}, kExponentBlock);
  for_each_block(n, [&](std::int32_t block, std::int32_t begin, std::int32_t end) {
    const auto bits_at = [&](std::int32_t i) { return float_to_bfloat16(tokens.at(row, begin + i / d)[i % d]); };
    put_offset(packed + 4LL * block, static_cast<std::uint32_t>(to - packed));
    const std::int32_t numbers = (end - begin) * d;
    for (std::int32_t i = 0; i < numbers; ++i) *to++ = sign_and_fraction(bits_at(i));
    to = put_exponents(code, numbers, bits_at, to);
  });
}

// False: the sequence lists no token.
bool sequence_lengths(const ListedTokens& tokens, std::int32_t s, std::uint8_t* lengths) {
  const KvRows& kv = tokens.kv;
  std::array<std::int64_t, 256> count{};
  std::array<std::int32_t, 256> length{};
  std::int64_t listed = 0;
  for (std::int32_t r = s * kv.kv_heads; r < (s + 1) * kv.kv_heads; ++r) {
    const std::int32_t n = tokens.entries(r) > 0 ? tokens.count(r) : 0;
    listed += n;
    for (std::int32_t i = 0; i < n; ++i)
      for (std::int32_t c = 0; c < kv.head_dim; ++c) ++count[exponent_of(tokens.at(r, i)[c])];
  }
  huffman_lengths(count.data(), length.data());
  for (std::size_t i = 0; i < length.size(); ++i) lengths[i] = static_cast<std::uint8_t>(length[i]);
  return listed > 0;
}

void encode(const ExponentCode& a) {
  const KvRows& kv = a.tokens.kv;
  std::int64_t at = 0;
  for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
    std::array<std::uint8_t, kExponentTable> lengths{};
    if (sequence_lengths(a.tokens, s, lengths.data())) a.bytes[s * kv.kv_heads] += kExponentTable;
    const PrefixCode code = prefix_code(lengths.data());
    for (std::int32_t r = s * kv.kv_heads; r < (s + 1) * kv.kv_heads; ++r) {
      const std::int64_t bytes = a.tokens.entries(r) > 0 ? row_code_bytes(a.tokens, r, lengths.data()) : 0;
      a.bytes[r] += static_cast<std::int32_t>(bytes);
      if (a.packed == nullptr) continue;
      if (bytes > 0) write_row(a.tokens, r, code, a.packed + at);
      a.begin[r] = at;
      a.end[r] = at += bytes;
    }
    if (a.packed != nullptr) std::copy(lengths.begin(), lengths.end(), a.lengths + std::int64_t{s} * kExponentTable);
  }
}

void decode(const ExponentCode& a) {
  const KvRows& kv = a.tokens.kv;
  const std::int32_t d = kv.head_dim;
  for (std::int32_t s = 0; s < kv.num_sequences(); ++s) {
    const PrefixCode code = prefix_code(a.lengths + std::int64_t{s} * kExponentTable);
    for (std::int32_t r = s * kv.kv_heads; r < (s + 1) * kv.kv_heads; ++r) {
      const std::uint8_t* const packed = a.packed + a.begin[r];
      for_each_block(a.tokens.entries(r) > 0 ? a.tokens.count(r) : 0, [&](std::int32_t block, std::int32_t begin, std::int32_t end) {
        read_block(code, (end - begin) * d, packed + offset_at(packed + 4LL * block),
                   [&](std::int32_t i, std::uint16_t bits) { a.tokens.at(r, begin + i / d)[i % d] = bfloat16_to_float(bits); });
      });
    }
  }
}

}  // namespace

void run_cpu(const ExponentCode& a) { a.unpacks ? decode(a) : encode(a); }

void stored_arrays(ExponentCode& a, StoredArrays& arrays) {
  const std::int64_t *begin = a.begin, *end = a.end;
  arrays.sized_rows(a.packed, begin, end);
  a.begin = const_cast<std::int64_t*>(begin), a.end = const_cast<std::int64_t*>(end);  // NOLINT: unpacking only reads
  arrays.sequences(a.lengths, kExponentTable);
}

}  // namespace kvlab
