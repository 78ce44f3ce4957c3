#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/ordered_key.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/device/cuda/vectors.cuh"
#include "kernels/storage/evict/evict_rows.h"

namespace kvlab {

namespace {

constexpr int kMost = EvictRows::kMost;

struct EvictArgs {
  DeviceRows rows;
  const std::int64_t* first;
  std::int32_t* dropped;
  EvictRows::Choice choice;
  const float* scores;
  const std::int32_t *from, *guess;  // [num_rows]
  std::int32_t pieces;               // per vector
  bool moves;
};

// The smallest ranks go first.
struct Going {
  std::uint64_t rank;  // key of the score, then the later position first
  std::int32_t place;
};
__device__ __forceinline__ Going first_of(const Going& a, const Going& b) { return b.rank < a.rank ? b : a; }

__device__ __forceinline__ std::uint64_t rank_of(std::uint32_t key, std::int32_t position) {
  return std::uint64_t{key} << 32 | ~static_cast<std::uint32_t>(position);
}

// The block's first token with a rank above `last`. A position is read only for a score equal to the thread's best or to the last one.
__device__ Going next_lowest(const EvictArgs& a, int row, std::uint64_t last, Going* shared) {
  const auto rank_at = [&](std::int32_t i, std::uint32_t key) { return rank_of(key, a.rows.position[a.rows.slot(row, i)]); };
  const float* const scores = a.scores + a.rows.first[row];
  const auto least = static_cast<std::uint32_t>(last >> 32);
  Going mine{~std::uint64_t{0}, -1};
  for (std::int32_t i = threadIdx.x; i < a.rows.len[row]; i += kRowThreads) {
    const std::uint32_t key = ordered_key(scores[i]), best = static_cast<std::uint32_t>(mine.rank >> 32);
    if (key < least || key > best) continue;
    const std::uint64_t rank = rank_at(i, key);
    if (rank > last && rank < mine.rank) mine = {rank, i};
  }
  shared[threadIdx.x] = mine;
  __syncthreads();
  for (int width = kRowThreads / 2; width > 0; width /= 2) {
    if (static_cast<int>(threadIdx.x) < width) shared[threadIdx.x] = first_of(shared[threadIdx.x], shared[threadIdx.x + width]);
    __syncthreads();
  }
  const Going all = shared[0];
  __syncthreads();
  return all;
}

// By one thread.
__device__ __forceinline__ void put_in_order(std::int32_t* going, int d) {
  for (int i = 1; i < d; ++i)
    for (int j = i; j > 0 && going[j] < going[j - 1]; --j) {
      const std::int32_t place = going[j];
      going[j] = going[j - 1], going[j - 1] = place;
    }
}

__device__ void list_positions(const EvictArgs& a, int row, int d, std::int32_t* going, std::int32_t* found) {
  const std::int32_t from = a.from[row], guess = a.guess[row], n = a.rows.len[row];
  if (d == 1 && guess >= 0 && guess < n && a.rows.position[a.rows.slot(row, guess)] == from) {
    if (threadIdx.x == 0) going[0] = guess;
    return;
  }
  if (threadIdx.x == 0) *found = 0;
  __syncthreads();
  for (std::int32_t i = threadIdx.x; i < n; i += kRowThreads) {
    const std::int32_t position = a.rows.position[a.rows.slot(row, i)];
    if (position >= from && position < from + d) going[atomicAdd(found, 1)] = i;
  }
}

// Sources of the free places among the first `keep`, by one thread. Returns the number of moves.
__device__ __forceinline__ int plan_moves(const std::int32_t* going, int d, std::int32_t keep, std::int32_t* source) {
  int holes = 0;
  while (holes < d && going[holes] < keep) ++holes;
  int gone = holes;
  std::int32_t next = keep;
  for (int h = 0; h < holes; ++h, ++next) {
    for (; gone < d && going[gone] == next; ++gone) ++next;
    source[h] = next;
  }
  return holes;
}

template <class Piece>
__device__ void move_tokens(const EvictArgs& a, int row, const std::int32_t* to, const std::int32_t* from, int moves) {
  auto *const k = static_cast<Piece*>(a.rows.k), *const v = static_cast<Piece*>(a.rows.v);
  for (int item = threadIdx.x; item < moves * a.pieces; item += kRowThreads) {
    const int m = item / a.pieces, piece = item % a.pieces;
    const std::int64_t source = a.rows.slot(row, from[m]) * a.pieces + piece, target = a.rows.slot(row, to[m]) * a.pieces + piece;
    k[target] = k[source], v[target] = v[source];
  }
  for (int item = threadIdx.x; item < moves * (a.rows.num_words + 1); item += kRowThreads) {
    const int m = item % moves, channel = item / moves;
    const std::int64_t source = a.rows.slot(row, from[m]), target = a.rows.slot(row, to[m]);
    if (channel == 0)
      a.rows.position[target] = a.rows.position[source];
    else
      a.rows.words[(channel - 1) * a.rows.pool_tokens + target] = a.rows.words[(channel - 1) * a.rows.pool_tokens + source];
  }
}

// One block per row.
template <class Piece>
__global__ void __launch_bounds__(kRowThreads) evict_rows(EvictArgs a) {
  KVLAB_SHARED(Going, shared, kRowThreads);
  KVLAB_SHARED(std::int32_t, going, kMost);
  KVLAB_SHARED(std::int32_t, source, kMost);
  KVLAB_SHARED(std::int32_t, count, 1);
  const int row = blockIdx.x;
  const auto d = static_cast<int>(a.first[row + 1] - a.first[row]);
  if (d == 0) return;
  std::int32_t* const dropped = a.dropped + a.first[row];
  if (a.choice == EvictRows::Choice::kLowest) {
    Going last{0, -1};  // no score has key 0
    for (int j = 0; j < d; ++j) {
      last = next_lowest(a, row, last.rank, shared);
      if (threadIdx.x == 0) going[j] = last.place;
    }
  } else if (a.choice == EvictRows::Choice::kPositions) {
    list_positions(a, row, d, going, count);
  } else if (static_cast<int>(threadIdx.x) < d) {
    going[threadIdx.x] = dropped[threadIdx.x];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    put_in_order(going, d);
    *count = plan_moves(going, d, a.rows.len[row] - d, source);
  }
  __syncthreads();
  if (a.choice != EvictRows::Choice::kListed && static_cast<int>(threadIdx.x) < d) dropped[threadIdx.x] = going[threadIdx.x];
  if (a.moves) move_tokens<Piece>(a, row, going, source, *count);
}

}  // namespace

void run_cuda(const EvictRows& op, CudaContext& cuda) {
  const KvRows& kv = op.kv;
  if (op.total() == 0) return;
  for (std::int32_t r = 0; r < kv.num_rows; ++r)
    if (op.count(r) > kMost)
      throw CudaError("evict: " + std::to_string(op.count(r)) + " tokens of a row; at most " + std::to_string(kMost) + " go at once");
  const CudaContext::Frame frame(cuda);
  const bool by_position = op.choice == EvictRows::Choice::kPositions;
  const std::int64_t vector_bytes = kv.head_dim * element_bytes(kv.type);
  const bool is_wide = vector_bytes % 16 == 0 && aligned16({kv.k, kv.v});
  EvictArgs a{};
  a.rows = on_device(kv, cuda), a.first = cuda.upload(op.first, kv.num_rows + 1), a.dropped = op.dropped;
  a.choice = op.choice, a.scores = op.scores, a.moves = op.moves;
  if (by_position) a.from = cuda.upload(op.from, kv.num_rows), a.guess = cuda.upload(op.guess, kv.num_rows);
  a.pieces = static_cast<std::int32_t>(vector_bytes / (is_wide ? 16 : 2));
  launch("evict_rows", cuda, block_each(kv.num_rows), is_wide ? evict_rows<uint4> : evict_rows<std::uint16_t>, a);
}

}  // namespace kvlab
