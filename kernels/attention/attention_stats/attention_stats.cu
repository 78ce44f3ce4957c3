#include <algorithm>
#include <vector>

#include "kernels/attention/attention_prefill/key_scores.cuh"
#include "kernels/attention/attention_stats/attention_stats.h"
#include "kernels/attention/attention_stats/stats_queries.cuh"

namespace kvlab {

namespace {

using namespace prefill;  // NOLINT

constexpr std::int64_t kMostParts = std::int64_t{8} << 20;  // of 8 bytes, in scratch memory

// A block per token.
template <class T>
__global__ void __launch_bounds__(128) split_queries(DeviceRows kv, StatsQueries q, T* high, T* rest, std::int32_t* visible) {
  const int token = static_cast<int>(blockIdx.x), s = q.sequence(token);
  const std::int64_t width = static_cast<std::int64_t>(kv.kv_heads) * kv.group * kv.head_dim;
  const float* const from = q.data[s] + (token - q.first[s]) * width;
  for (std::int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const T x = from_float<T>(from[i]);
    high[token * width + i] = x;
    rest[token * width + i] = from_float<T>(from[i] - to_float(x));
  }
  for (int h = static_cast<int>(threadIdx.x); h < kv.kv_heads; h += static_cast<int>(blockDim.x))
    visible[token * kv.kv_heads + h] = count_visible(kv, s * kv.kv_heads + h, q.position[s] + token - q.first[s]);
}

// A warp per line (token, query head).
__global__ void __launch_bounds__(128)
    join_parts(DeviceRows kv, StatsQueries q, const float2* parts, int tile_keys, std::int64_t lines, float* log_sum) {
  const std::int64_t line = static_cast<std::int64_t>(blockIdx.x) * 4 + warp_index();
  if (line >= lines) return;
  const int heads = kv.kv_heads * kv.group, token = static_cast<int>(line / heads);
  const int row = q.sequence(token) * kv.kv_heads + static_cast<int>(line % heads) / kv.group;
  const int tiles = (kv.len[row] + tile_keys - 1) / tile_keys;
  float top = minus_infinity(), sum = 0;
  for (int i = lane_index(); i < tiles; i += kWarpSize) top = fmaxf(top, parts[i * lines + line].x);
  top = warp_max(top);
  for (int i = lane_index(); i < tiles; i += kWarpSize) {
    const float2 part = parts[i * lines + line];
    if (part.x != minus_infinity()) sum += exp2f(part.x - top) * part.y;
  }
  sum = warp_sum(sum);
  if (lane_index() == 0) log_sum[line] = top == minus_infinity() ? top : (top + log2f(sum)) * kLn2;
}

struct Chunk {
  StatsQueries queries;
  std::int64_t tokens = 0;
};

// Queries [begin, begin + count) of each sequence.
Chunk upload_chunk(const AttentionStats& a, std::int32_t begin, std::int32_t count, CudaContext& cuda) {
  const std::int64_t width = static_cast<std::int64_t>(a.kv.kv_heads) * a.kv.group * a.kv.head_dim;
  const auto n = static_cast<std::size_t>(a.kv.num_sequences());
  std::vector<std::int32_t> first{0}, position;
  std::vector<const float*> data;
  for (std::size_t s = 0; s < n; ++s) {
    const Queries& q = a.queries[s];
    first.push_back(first.back() + std::clamp(q.count - begin, 0, count));
    position.push_back(q.first_position + begin);
    data.push_back(q.data + begin * width);
  }
  Chunk c;
  c.tokens = first.back();
  c.queries.first = cuda.upload(first.data(), static_cast<std::int64_t>(n) + 1);
  c.queries.position = cuda.upload(position.data(), static_cast<std::int64_t>(n));
  c.queries.data = cuda.upload(data.data(), static_cast<std::int64_t>(n));
  c.queries.sequences = a.kv.num_sequences();
  return c;
}

template <class T, int D>
void run_tiles(const AttentionStats& a, const DeviceRows& kv, const Chunk& chunk, CudaContext& cuda) {
  constexpr int kTiles = D <= 128 ? 2 : 1, kKeys = 16 * kTiles * kScoreWarps;
  const std::int64_t heads = static_cast<std::int64_t>(kv.kv_heads) * kv.group, lines = chunk.tokens * heads;
  const std::int64_t key_tiles = ceil_div(kv.longest, kKeys);
  T *high = cuda.scratch<T>(lines * D), *rest = cuda.scratch<T>(lines * D);
  auto* visible = cuda.scratch<std::int32_t>(chunk.tokens * kv.kv_heads);
  auto* parts = cuda.scratch<float2>(key_tiles * lines);
  auto* log_sum = cuda.scratch<float>(lines);
  launch("split_queries", cuda, blocks_of(chunk.tokens, 128), split_queries<T>, kv, chunk.queries, high, rest, visible);
  ScoreArgs<T> args{};
  args.q = high, args.q_rest = rest, args.k = static_cast<const T*>(kv.k), args.query_first = chunk.queries.first, args.visible = visible;
  args.len = kv.len, args.page_begin = kv.page_begin, args.page = kv.page, args.first = kv.first, args.parts = parts;
  args.q_stride = heads * D, args.tokens = chunk.tokens, args.rows = kv.num_rows, args.kv_heads = kv.kv_heads, args.group = kv.group;
  args.columns = kv.group, args.page_units = kv.page_tokens / kPageUnit, args.adds = true;
  args.scale = kLog2E / std::sqrt(static_cast<float>(D));
  args.factor = a.group == AttentionStats::Group::kMean ? 1.0F / static_cast<float>(kv.group) : 1.0F;
  const LaunchShape shape = blocks_of(key_tiles * kv.num_rows, kScoreThreads, score_bytes(D, kTiles, true));
  launch("attention_log_sums", cuda, shape, key_scores<T, D, kTiles, Scores::kLogSums, true>, args);
  launch("join_parts", cuda, blocks_of(ceil_div(lines, 4), 128), join_parts, kv, chunk.queries, parts, kKeys, lines, log_sum);
  args.log_sum = log_sum, args.parts = nullptr;
  args.sum = a.wants_sum ? a.sum : nullptr, args.sum_sq = a.wants_sum_sq ? a.sum_sq : nullptr, args.max = a.wants_max ? a.max : nullptr;
  args.weigh_by_visible = a.weigh_by_visible, args.visible_offset = a.visible_offset;
  args.group_max = a.group == AttentionStats::Group::kMax;
  if (a.only_sums()) {
    launch("attention_stats", cuda, shape, key_scores<T, D, kTiles, Scores::kSums, true>, args);
    return;
  }
  std::int32_t columns = kv.group;
  while ((columns & (columns - 1)) != 0) ++columns;
  args.columns = columns;
  launch("attention_stats", cuda, shape, key_scores<T, D, kTiles, Scores::kGrouped, true>, args);
}

template <class T>
void run_plain(PlainStats stats, const DeviceRows& kv, const Chunk& chunk, CudaContext& cuda) {
  const std::int64_t lines = chunk.tokens * kv.kv_heads * kv.group;
  auto* log_sum = cuda.scratch<float>(lines);
  stats.log_sum = log_sum;
  launch("plain_log_sums", cuda, blocks_of(lines, 128), plain_log_sums<T>, kv, chunk.queries, log_sum);
  const std::int64_t blocks = ceil_div(kv.longest, 4);
  launch("plain_stats", cuda, blocks_of(kv.num_rows * blocks, 128), plain_stats<T>, kv, chunk.queries, stats, static_cast<int>(blocks));
}

template <class T>
void run_chunk(const AttentionStats& a, const DeviceRows& kv, const VoteWeight* votes, const Chunk& chunk, CudaContext& cuda) {
  const bool tensor_cores = cuda.gpu().compute_capability >= (std::is_same_v<T, bf16> ? 80 : 75);
  const bool fits = static_cast<std::int64_t>(score_bytes(kv.head_dim, kv.head_dim <= 128 ? 2 : 1, true)) + kScoreStaticBytes <=
                    cuda.gpu().shared_bytes_per_block;
  const bool tiles = tensor_cores && fits && votes == nullptr && kv.page_tokens % kPageUnit == 0 && kv.group <= 16;
  if constexpr (sizeof(T) == 2) {
    if (tiles && kv.head_dim == 64) return run_tiles<T, 64>(a, kv, chunk, cuda);
    if (tiles && kv.head_dim == 128) return run_tiles<T, 128>(a, kv, chunk, cuda);
    if (tiles && kv.head_dim == 256) return run_tiles<T, 256>(a, kv, chunk, cuda);
  }
  PlainStats stats{};
  stats.sum = a.wants_sum ? a.sum : nullptr, stats.sum_sq = a.wants_sum_sq ? a.sum_sq : nullptr;
  stats.max = a.wants_max ? a.max : nullptr;
  stats.group = a.group, stats.weigh_by_visible = a.weigh_by_visible, stats.visible_offset = a.visible_offset, stats.votes = votes;
  run_plain<T>(stats, kv, chunk, cuda);
}

void add_rows(const AttentionStats& a, const DeviceRows& kv, const VoteWeight* votes, CudaContext& cuda) {
  std::int32_t most = 0;
  for (std::int32_t s = 0; s < a.kv.num_sequences(); ++s) most = std::max(most, a.queries[s].count);
  if (most == 0 || kv.longest == 0) return;
  const std::int64_t per_query = ceil_div<std::int64_t>(kv.longest, 64) * kv.num_rows * kv.group;
  const auto together = static_cast<std::int32_t>(std::clamp<std::int64_t>(kMostParts / per_query, 1, most));
  for (std::int32_t begin = 0; begin < most; begin += together) {
    const CudaContext::Frame chunk_frame(cuda);
    const Chunk chunk = upload_chunk(a, begin, together, cuda);
    for_type(a.kv.type, [&](auto zero) { run_chunk<decltype(zero)>(a, kv, votes, chunk, cuda); });
  }
}

struct Votes {
  DeviceRows kv;
  const float* sums;  // of each row
  __device__ float mean(int sequence, std::int64_t i) const {
    float all = 0;
    for (int row = sequence * kv.kv_heads; row < (sequence + 1) * kv.kv_heads; ++row) all += sums[kv.first[row] + i];
    return all / static_cast<float>(kv.kv_heads);
  }
};

struct WriteMeans {
  Votes votes;
  const std::int64_t* first;
  const Queries* queries;
  float* out;
  __device__ std::int64_t count(int sequence) const { return first[sequence + 1] - first[sequence]; }
  __device__ void operator()(int sequence, std::int64_t i) const {
    out[first[sequence] + i] = votes.mean(sequence, i) / static_cast<float>(max(1, queries[sequence].count));
  }
};

struct AddToWords {
  Votes votes;
  std::uint32_t* words;
  __device__ std::int64_t count(int row) const { return votes.kv.len[row]; }
  __device__ void operator()(int row, std::int64_t i) const {
    std::uint32_t& word = words[votes.kv.slot(row, static_cast<std::int32_t>(i))];
    word = __float_as_uint(__uint_as_float(word) + votes.mean(row / votes.kv.kv_heads, i));
  }
};

void run_votes(AttentionStats a, const DeviceRows& kv, CudaContext& cuda) {
  const std::int32_t sequences = a.kv.num_sequences();
  std::vector<VoteWeight> weights;
  for (std::int32_t s = 0; s < sequences; ++s) weights.push_back(a.vote_weight(s));
  a.sum = cuda.scratch<float>(kv.total);
  cuda::fill(a.sum, 0, 4 * kv.total, cuda.stream());
  add_rows(a, kv, cuda.upload(weights.data(), sequences), cuda);
  const Votes votes{kv, a.sum};
  if (a.has_groups())
    launch_over_rows("group_votes", cuda, kv.num_rows, kv.longest, AddToWords{votes, kv.words + a.votes.word * kv.pool_tokens});
  else
    launch_over_rows("recent_attention", cuda, sequences, longest_row(a.votes.first, sequences),
                     WriteMeans{votes, cuda.upload(a.votes.first, sequences + 1), cuda.upload(a.queries, sequences), a.votes.out});
}

}  // namespace

void run_cuda(const AttentionStats& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows kv = on_device(a.kv, cuda);
  a.has_votes() ? run_votes(a, kv, cuda) : add_rows(a, kv, nullptr, cuda);
}

void write_query_lines(const AttentionStats& a, const DeviceRows& kv, QueryRange range, float* lines, CudaContext& cuda) {
  const CudaContext::Frame frame(cuda);
  cuda::fill(lines, 0, 4 * range.count * a.kv.total(), cuda.stream());
  const Chunk chunk = upload_chunk(a, range.begin, range.count, cuda);
  if (chunk.tokens == 0 || kv.longest == 0) return;
  PlainStats stats{};
  stats.group = a.group, stats.weigh_by_visible = a.weigh_by_visible, stats.visible_offset = a.visible_offset;
  stats.lines = lines, stats.line_tokens = a.kv.total();
  for_type(a.kv.type, [&](auto zero) { run_plain<decltype(zero)>(stats, kv, chunk, cuda); });
}

}  // namespace kvlab
