#include "kernels/device/cuda/listed_tools.cuh"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/storage/token_copy/token_copy.h"

namespace kvlab {

namespace {

// A thread per channel of an entry.
template <class T>
struct CopyVectors {
  DeviceList list;
  T* stored;
  const std::uint8_t* channels;
  int width;
  bool from_pages;

  __device__ std::int64_t count(int row) const { return std::int64_t{list.entries(row)} * list.rows.head_dim; }
  __device__ void operator()(int row, std::int64_t at) const {
    const int d = list.rows.head_dim, c = static_cast<int>(at % d);
    const auto i = static_cast<std::int32_t>(at / d);
    const std::int64_t slot = list.slot(row, i);
    if (slot < 0) return;
    T& x = static_cast<T*>(list.data)[slot * d + c];
    int place = c;
    if (channels != nullptr) {
      const std::uint8_t* const mask = channels + std::int64_t{row} * ((d + 7) / 8);
      if ((mask[c / 8] >> c % 8 & 1U) == 0) {
        if (!from_pages) store_float(&x, 0.0F);
        return;
      }
      place = __popcll(mask[c / 8] & ((1U << c % 8) - 1));
      for (int byte = 0; byte < c / 8; ++byte) place += __popcll(mask[byte]);
    }
    T& y = stored[(list.first[row] + i) * width + place];
    from_pages ? y = x : x = y;
  }
};

struct CopyWords {
  DeviceRows rows;
  std::uint32_t* stored;
  bool from_pages;

  __device__ std::int64_t count(int row) const { return std::int64_t{1 + rows.num_words} * rows.len[row]; }
  __device__ void operator()(int row, std::int64_t at) const {
    const std::int32_t n = rows.len[row], word = static_cast<std::int32_t>(at / n) - 1;
    const std::int64_t slot = rows.slot(row, static_cast<std::int32_t>(at % n));
    std::uint32_t& y = stored[std::int64_t{1 + rows.num_words} * rows.first[row] + at];
    if (word >= 0) {
      std::uint32_t& x = rows.words[word * rows.pool_tokens + slot];
      from_pages ? y = x : x = y;
    } else if (from_pages) {
      y = static_cast<std::uint32_t>(rows.position[slot]);
    } else {
      rows.position[slot] = static_cast<std::int32_t>(y);
    }
  }
};

}  // namespace

void run_cuda(const VectorCopy& a, CudaContext& cuda) {
  if (a.tokens.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceList list = on_device(a.tokens, cuda);
  for_type(a.tokens.kv.type, [&](auto zero) {
    using T = decltype(zero);
    launch_over_rows("copy_vectors", cuda, a.tokens.kv.num_rows, std::int64_t{list.longest} * a.tokens.kv.head_dim,
                     CopyVectors<T>{list, static_cast<T*>(a.stored), a.channels, a.width(), a.way == TokenCopyWay::kFromPages});
  });
}

void run_cuda(const WordCopy& a, CudaContext& cuda) {
  if (a.kv.total() == 0) return;
  const CudaContext::Frame frame(cuda);
  const DeviceRows rows = on_device(a.kv, cuda);
  launch_over_rows("copy_words", cuda, a.kv.num_rows, std::int64_t{1 + a.kv.num_words} * rows.longest,
                   CopyWords{rows, a.stored, a.way == TokenCopyWay::kFromPages});
}

}  // namespace kvlab
