#include "kernels/device/cuda/device_rows.h"
#include "kernels/device/cuda/over_rows.cuh"
#include "kernels/device/cuda/upload.h"
#include "kernels/device/cuda/vectors.cuh"
#include "kernels/storage/renumber/place_angle.h"
#include "kernels/storage/renumber/renumber.h"

namespace kvlab {

namespace {

struct DevicePlaces {
  DeviceRows rows;
  const std::int64_t* index_first;
  const std::int32_t *index, *end;
  const float* frequencies;
};

DevicePlaces on_device(const KvRows& kv, const Places& p, CudaContext& cuda) {
  const std::int64_t sequences = kv.num_sequences();
  const auto [first, end, frequencies] = upload_all(cuda, host_array(p.index_first, kv.num_rows + 1), host_array(p.end, sequences),
                                                    host_array(p.frequencies, sequences * (kv.head_dim / 2)));
  return {on_device(kv, cuda), first, p.index, end, frequencies};
}

// A thread per pair of channels of a listed token: out null turns it in place at the front of its row, else it is copied.
template <class T>
struct TurnKeys {
  DevicePlaces p;
  DeviceRows out;

  __device__ std::int64_t count(int row) const { return (p.index_first[row + 1] - p.index_first[row]) * pairs(); }
  __device__ int pairs() const { return p.rows.head_dim / 2; }
  __device__ void operator()(int row, std::int64_t at) const {
    const int half = pairs(), c = static_cast<int>(at % half), sequence = row / p.rows.kv_heads;
    const std::int64_t first = p.index_first[row], m = p.index_first[row + 1] - first, j = at / half;
    const std::int32_t i = p.index[first + j], n = p.rows.len[row];
    const bool copies = out.k != nullptr;
    const std::int64_t to = (copies ? out : p.rows).slot(row, static_cast<std::int32_t>(j)) * 2 * half + c;
    T* const k = static_cast<T*>(copies ? out.k : p.rows.k);
    float x, y;
    if (copies) {
      const std::int64_t from = p.rows.slot(row, i) * 2 * half + c;
      const T *const old_k = static_cast<const T*>(p.rows.k), *const old_v = static_cast<const T*>(p.rows.v);
      T* const v = static_cast<T*>(out.v);
      x = to_float(old_k[from]), y = to_float(old_k[from + half]);
      v[to] = old_v[from], v[to + half] = old_v[from + half];
      if (c == 0) out.position[to / (2 * half)] = p.rows.position[from / (2 * half)];
    } else {
      x = to_float(k[to]), y = to_float(k[to + half]);
    }
    if (p.frequencies != nullptr && n - i != m - j) {
      const double angle = place_angle(p.end[sequence], n, i, m, j, p.frequencies[sequence * half + c]);
      const auto cosine = static_cast<float>(cos(angle)), sine = static_cast<float>(sin(angle));
      const float low = x * cosine - y * sine;
      y = y * cosine + x * sine, x = low;
    }
    k[to] = from_float<T>(x), k[to + half] = from_float<T>(y);
  }
};

void turn(const char* name, const KvRows& kv, const Places& places, const DeviceRows& out, CudaContext& cuda) {
  if (kv.num_rows == 0 || places.index_first[kv.num_rows] == 0) return;
  if (kv.head_dim % 2 != 0) throw CudaError("RoPE turns pairs of channels: head_dim " + std::to_string(kv.head_dim) + " is odd");
  const DevicePlaces on = on_device(kv, places, cuda);
  for_type(kv.type, [&](auto zero) {
    launch_over_rows(name, cuda, kv.num_rows, longest_row(places.index_first, kv.num_rows) * (kv.head_dim / 2),
                     TurnKeys<decltype(zero)>{on, out});
  });
}

}  // namespace

void run_cuda(const RenumberKeys& a, CudaContext& cuda) {
  if (a.places.frequencies == nullptr) return;
  const CudaContext::Frame frame(cuda);
  turn("renumber_keys", a.kv, a.places, {}, cuda);
}

void run_cuda(const PlaceSelected& a, CudaContext& cuda) {
  const CudaContext::Frame frame(cuda);
  turn("place_selected", a.kv, a.places, on_device(a.out, cuda), cuda);
}

}  // namespace kvlab
