#pragma once

#include <cstddef>
#include <cstring>
#include <vector>

#include "kernels/device/cuda/block_team.cuh"
#include "kernels/device/cuda/row_tools.cuh"
#include "kernels/rows/row_op.h"

namespace kvlab {

// Replaces shapes by device copies in the current Frame, in one transfer.
class ShapesToDevice {
 public:
  explicit ShapesToDevice(CudaContext& cuda) : cuda_(cuda) {}
  template <class T>
  void operator()(T*& array, std::int64_t n) {
    if (array == nullptr) return;
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T), at = host_.size();
    places_.push_back({&array, at});
    host_.resize(at + round_up(bytes, kAlign));
    without_padding(array, n, [&](const auto* from) { std::memcpy(host_.data() + at, from, bytes); });
  }
  void operator()(KvRows& kv) {
    const DeviceRows d = on_device(kv, cuda_);
    kv.len = d.len, kv.first = d.first, kv.page_begin = d.page_begin, kv.page = d.page;
  }
  void done() {
    if (host_.empty()) return;
    std::byte* const device = cuda_.scratch<std::byte>(static_cast<std::int64_t>(host_.size()));
    for (const auto& [array, at] : places_) {
      const void* const copy = device + at;
      std::memcpy(array, &copy, sizeof copy);
    }
    cuda::to_device(device, host_.data(), static_cast<std::int64_t>(host_.size()), cuda_.stream());
  }

 private:
  static constexpr std::size_t kAlign = 16;
  struct Place {
    void* array;  // the pointer to replace
    std::size_t at;
  };
  CudaContext& cuda_;
  std::vector<std::byte> host_;
  std::vector<Place> places_;
};

template <class Op>
void shapes_to_device(Op& op, CudaContext& cuda) {
  ShapesToDevice to_device(cuda);
  op.shapes(to_device);
  to_device.done();
}

// Replaces results in CPU memory by device memory.
class ResultsOnDevice {
 public:
  explicit ResultsOnDevice(CudaContext& cuda) : cuda_(cuda) {}
  template <class T>
  void operator()(T*& array, std::int64_t n) {
    if (array == nullptr) return;
    T* const device = const_cast<T*>(cuda_.upload(array, n));
    copies_.push_back({array, device, n * std::int64_t{sizeof(T)}});
    array = device;
  }
  // Waits for the stream.
  void copy_back() const {
    for (const Copy& copy : copies_) cuda::to_host(copy.host, copy.device, copy.bytes, cuda_.stream());
    if (!copies_.empty()) cuda_.synchronize();
  }

 private:
  struct Copy {
    void* host;
    const void* device;
    std::int64_t bytes;
  };
  CudaContext& cuda_;
  std::vector<Copy> copies_;
};
template <class Op>
void results_to_device(Op& op, ResultsOnDevice& results) {
  if constexpr (requires { op.results(results); }) op.results(results);
}

template <class Op>
struct EachBody {
  Op op;
  __device__ std::int64_t count(int row) const { return op.count(row); }
  __device__ void operator()(int row, std::int64_t i) const { op(row, i); }
};

template <class Op>
void run_each_on_device(const Op& op, CudaContext& cuda) {
  std::int64_t longest = 0;
  for (std::int64_t r = 0; r < op.rows(); ++r) longest = op.count(r) > longest ? op.count(r) : longest;
  if (longest == 0) return;
  const CudaContext::Frame frame(cuda);
  EachBody<Op> body{op};
  ResultsOnDevice results(cuda);
  results_to_device(body.op, results);
  shapes_to_device(body.op, cuda);
  launch_over_rows(op.cost().op.data(), cuda, op.rows(), longest, body);
  results.copy_back();
}

template <class Body>
__global__ void __launch_bounds__(kRowThreads) row_body(Body body, float* room, std::int64_t each) {
  KVLAB_SHARED(double, shared, 33);
  body(BlockTeam(room + each * blockIdx.x, shared), std::int64_t{blockIdx.x});
}

// body(team, i), with `each` floats of room per team.
template <class Body>
void launch_teams(const char* name, CudaContext& cuda, std::int64_t teams, std::int64_t each, const Body& body) {
  launch(name, cuda, block_each(teams), row_body<Body>, body, cuda.scratch<float>(teams * each), each);
}

template <class Op>
void run_rows_on_device(const Op& op, CudaContext& cuda) {
  if (op.rows() == 0) return;
  const CudaContext::Frame frame(cuda);
  const std::int64_t each = most_room(op);
  Op body = op;
  ResultsOnDevice results(cuda);
  results_to_device(body, results);
  shapes_to_device(body, cuda);
  launch_teams(op.cost().op.data(), cuda, op.rows(), each, body);
  results.copy_back();
}

}  // namespace kvlab
