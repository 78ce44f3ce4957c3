#include <algorithm>

#include "base/random.h"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/storage/low_rank/low_rank.h"

namespace kvlab {

namespace {

// Places of X [entries, width] and its factors.
struct LowRankMatrix {
  std::int32_t row, entries;
  std::int64_t x, q, r, left, right;
};

struct LowRank {
  DeviceList list;
  const LowRankMatrix* matrices;
  std::int32_t heads, width, rank;
  const float* const* pre_rope;  // null: the cached vectors
  const float* normals;          // [width * rank] the start
  float *x, *q, *r;              // [entries, width]; [rank, entries]; [rank, width]
  std::uint16_t *left, *right;

  __device__ std::int32_t tokens(int m) const { return listed_count(list, matrices[m].row); }
  // The rest of the factors is 0.
  __device__ std::int32_t columns(int m) const { return min(min(rank, tokens(m)), width); }
  // Part h of entry i.
  template <class T>
  __device__ float source(int m, std::int32_t i, int h, int c) const {
    const int row = matrices[m].row + h, d = list.rows.head_dim, kv_heads = list.rows.kv_heads;
    if (pre_rope == nullptr) return load_float(listed_at<T>(list, row, i) + c);
    const std::int64_t position = list.rows.position[list.slot(row, i)];
    return pre_rope[row / kv_heads][(position * kv_heads + row % kv_heads) * d + c];
  }
};

template <class T>
struct Gather {
  LowRank a;
  __device__ std::int64_t count(int m) const { return std::int64_t{a.tokens(m)} * a.width; }
  __device__ void operator()(int m, std::int64_t at) const {
    const int d = a.list.rows.head_dim, c = static_cast<int>(at % a.width);
    a.x[a.matrices[m].x + at] = a.source<T>(m, static_cast<std::int32_t>(at / a.width), c / d, c % d);
  }
};

struct Start {
  LowRank a;
  __device__ std::int64_t count(int m) const { return std::int64_t{a.columns(m)} * a.width; }
  __device__ void operator()(int m, std::int64_t at) const {
    const std::int64_t columns = a.columns(m), i = at / columns, c = at % columns;
    a.r[a.matrices[m].r + c * a.width + i] = a.normals[at];
  }
};

// q = X r.
struct TimesRight {
  LowRank a;
  __device__ std::int64_t count(int m) const { return std::int64_t{a.columns(m)} * a.tokens(m); }
  __device__ void operator()(int m, std::int64_t at) const {
    const LowRankMatrix& x = a.matrices[m];
    const std::int64_t n = a.tokens(m), c = at / n, i = at % n;
    float sum = 0;
    for (std::int64_t j = 0; j < a.width; ++j) sum += a.x[x.x + i * a.width + j] * a.r[x.r + c * a.width + j];
    a.q[x.q + c * x.entries + i] = sum;
  }
};

// r = X^T q.
struct TimesLeft {
  LowRank a;
  __device__ std::int64_t count(int m) const { return std::int64_t{a.columns(m)} * a.width; }
  __device__ void operator()(int m, std::int64_t at) const {
    const LowRankMatrix& x = a.matrices[m];
    const std::int64_t n = a.tokens(m), c = at / a.width, j = at % a.width;
    float sum = 0;
    for (std::int64_t i = 0; i < n; ++i) sum += a.x[x.x + i * a.width + j] * a.q[x.q + c * x.entries + i];
    a.r[x.r + at] = sum;
  }
};

// As in low_rank_cpu.cpp. One block per matrix; `alongs` [matrices, rank] is scratch.
__global__ void __launch_bounds__(kRowThreads) orthonormalize(LowRank a, bool of_q, float* alongs) {
  KVLAB_SHARED(float, shared, 33);
  const int m = blockIdx.x;
  const LowRankMatrix matrix = a.matrices[m];
  const int n = of_q ? a.tokens(m) : a.width, columns = a.columns(m);
  const std::int64_t stride = of_q ? matrix.entries : a.width;
  float *const data = of_q ? a.q + matrix.q : a.r + matrix.r, *const along = alongs + std::int64_t{m} * a.rank;
  const auto length = [&](const float* x) {
    float square = 0;
    for (int i = threadIdx.x; i < n; i += kRowThreads) square += x[i] * x[i];
    return sqrtf(block_sum(square, shared));
  };
  for (int c = 0; c < columns; ++c) {
    float* const mine = data + c * stride;
    const float before = length(mine);
    for (int pass = 0; pass < 2 && c > 0; ++pass) {
      for (int k = warp_index(); k < c; k += kRowThreads / kWarpSize) {
        const float dot = warp_dot(data + k * stride, mine, n);
        if (lane_index() == 0) along[k] = dot;
      }
      __syncthreads();
      for (int i = threadIdx.x; i < n; i += kRowThreads) {
        float x = 0;
        for (int k = 0; k < c; ++k) x += data[k * stride + i] * along[k];
        mine[i] -= x;
      }
      __syncthreads();
    }
    const float left = length(mine);
    const bool keeps = left > 1e-5F * before && left > 0.0F;
    for (int i = threadIdx.x; i < n; i += kRowThreads) mine[i] = keeps ? mine[i] / left : 0.0F;
    __syncthreads();
  }
}

struct StoreLeft {
  LowRank a;
  __device__ std::int64_t count(int m) const { return std::int64_t{a.matrices[m].entries} * a.rank; }
  __device__ void operator()(int m, std::int64_t at) const {
    const LowRankMatrix& x = a.matrices[m];
    const std::int64_t i = at / a.rank, c = at % a.rank;
    a.left[x.left + at] = i < a.tokens(m) && c < a.columns(m) ? half_bits(a.q[x.q + c * x.entries + i]) : std::uint16_t{0};
  }
};
struct StoreRight {
  LowRank a;
  __device__ std::int64_t count(int) const { return std::int64_t{a.width} * a.rank; }
  __device__ void operator()(int m, std::int64_t at) const {
    const LowRankMatrix& x = a.matrices[m];
    a.right[x.right + at] = at / a.width < a.columns(m) ? half_bits(a.r[x.r + at]) : std::uint16_t{0};
  }
};

// A thread per pair of channels of a head (or the odd one out).
template <class T>
struct Rebuild {
  LowRank a;
  const std::int64_t* exact_first;  // null: none
  const std::int32_t* exact;
  __device__ int pairs() const { return (a.list.rows.head_dim + 1) / 2; }
  __device__ std::int64_t count(int m) const { return std::int64_t{a.tokens(m)} * a.heads * pairs(); }
  __device__ bool is_exact(int row, std::int32_t i) const {
    const std::int32_t token = a.list.index[a.list.first[row] + i];
    return is_among(exact + exact_first[row], static_cast<std::int32_t>(exact_first[row + 1] - exact_first[row]), token);
  }
  __device__ float product(const LowRankMatrix& x, std::int64_t i, std::int64_t j) const {
    float sum = 0;
    for (std::int64_t c = 0; c < a.rank; ++c)
      sum += to_float(f16{a.left[x.left + i * a.rank + c]}) * to_float(f16{a.right[x.right + c * a.width + j]});
    return sum;
  }
  __device__ void operator()(int m, std::int64_t at) const {
    const LowRankMatrix& x = a.matrices[m];
    const int d = a.list.rows.head_dim, half = d / 2, c = static_cast<int>(at % pairs()), h = static_cast<int>(at / pairs() % a.heads);
    const auto i = static_cast<std::int32_t>(at / pairs() / a.heads);
    if (exact_first != nullptr && is_exact(x.row + h, i)) return;
    T* const out = listed_at<T>(a.list, x.row + h, i);
    if (c == half) {  // no partner
      store_float(out + d - 1, product(x, i, std::int64_t{h} * d + d - 1));
      return;
    }
    float low = product(x, i, std::int64_t{h} * d + c), high = product(x, i, std::int64_t{h} * d + c + half);
    if (a.pre_rope != nullptr) {  // by the angle between the key before rotation and after
      const double px = a.source<T>(m, i, h, c), py = a.source<T>(m, i, h, c + half);
      const double qx = load_float(out + c), qy = load_float(out + c + half);
      double cosine = px * qx + py * qy, sine = px * qy - py * qx;
      const double length = hypot(cosine, sine), x0 = low, y0 = high;
      cosine = length > 0.0 ? cosine / length : 1.0, sine = length > 0.0 ? sine / length : 0.0;
      low = static_cast<float>(x0 * cosine - y0 * sine), high = static_cast<float>(x0 * sine + y0 * cosine);
    }
    store_float(out + c, low), store_float(out + c + half, high);
  }
};

struct Shape {
  std::vector<LowRankMatrix> matrices;
  std::int64_t x = 0, q = 0, r = 0, longest = 0;
};

Shape shape_of(const LowRankFactor& a) {
  Shape s;
  for (const LowRankShape& m : low_rank_shapes(a)) {
    s.matrices.push_back({m.row, m.entries, s.x, s.q, s.r, m.left, m.right});
    s.x += m.entries * m.width, s.q += std::int64_t{m.entries} * a.rank, s.r += m.width * a.rank;
    s.longest = std::max<std::int64_t>(s.longest, m.entries);
  }
  return s;
}

LowRank low_rank(const LowRankFactor& a, const Shape& shape, CudaContext& cuda) {
  LowRank l{};
  l.list = on_device(a.tokens, cuda);
  l.heads = a.joint_heads ? a.tokens.kv.kv_heads : 1, l.width = l.heads * a.tokens.kv.head_dim, l.rank = a.rank;
  const auto [matrices, pre_rope] = upload_all(cuda, std::span<const LowRankMatrix>(shape.matrices),
                                               host_array(a.is_pre_rope ? a.pre_rope : nullptr, a.tokens.kv.num_sequences()));
  l.matrices = matrices, l.pre_rope = pre_rope, l.left = a.left, l.right = a.right;
  return l;
}

void factor_all(const LowRankFactor& a, const Shape& shape, LowRank l, CudaContext& cuda) {
  const auto matrices = static_cast<std::int64_t>(shape.matrices.size());
  std::vector<float> normals;
  for (std::int64_t i = 0; i < l.width * std::min<std::int64_t>(a.rank, l.width); ++i)
    normals.push_back(static_cast<float>(Draw{a.seed, Purpose::kPolicy, static_cast<std::uint64_t>(i)}.normal()));
  l.normals = cuda.upload(normals.data(), static_cast<std::int64_t>(normals.size()));
  l.x = cuda.scratch<float>(shape.x), l.q = cuda.scratch<float>(shape.q), l.r = cuda.scratch<float>(shape.r);
  float* const along = cuda.scratch<float>(matrices * a.rank);
  const char* const name = "low_rank_factor";
  for_type(a.tokens.kv.type,
           [&](auto zero) { launch_over_rows(name, cuda, matrices, shape.longest * l.width, Gather<decltype(zero)>{l}); });
  launch_over_rows(name, cuda, matrices, l.width * a.rank, Start{l});
  for (std::int32_t round = 0; round < a.rounds; ++round) {
    launch_over_rows(name, cuda, matrices, shape.longest * a.rank, TimesRight{l});
    launch(name, cuda, block_each(matrices), orthonormalize, l, true, along);
    launch_over_rows(name, cuda, matrices, l.width * a.rank, TimesLeft{l});
    launch(name, cuda, block_each(matrices), orthonormalize, l, false, along);
  }
  if (a.rounds == 0) launch(name, cuda, block_each(matrices), orthonormalize, l, false, along);
  launch_over_rows(name, cuda, matrices, shape.longest * a.rank, TimesRight{l});
  launch_over_rows(name, cuda, matrices, shape.longest * a.rank, StoreLeft{l});
  launch_over_rows(name, cuda, matrices, l.width * a.rank, StoreRight{l});
}

void rebuild_all(const LowRankFactor& a, const Shape& shape, const LowRank& l, CudaContext& cuda) {
  const std::int64_t* const exact_first = a.num_exact() == 0 ? nullptr : cuda.upload(a.exact_first, a.tokens.kv.num_rows + 1);
  for_type(a.tokens.kv.type, [&](auto zero) {
    const Rebuild<decltype(zero)> rebuild{l, exact_first, a.exact};
    launch_over_rows("low_rank_rebuild", cuda, static_cast<std::int64_t>(shape.matrices.size()),
                     shape.longest * l.heads * ((a.tokens.kv.head_dim + 1) / 2), rebuild);
  });
}

}  // namespace

void run_cuda(const LowRankFactor& a, CudaContext& cuda) {
  if (a.tokens.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const Shape shape = shape_of(a);
  const LowRank l = low_rank(a, shape, cuda);
  a.unpacks ? rebuild_all(a, shape, l, cuda) : factor_all(a, shape, l, cuda);
}

}  // namespace kvlab
