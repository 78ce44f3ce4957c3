#pragma once

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "kernels/device/cuda/memory.h"
#include "kernels/element.h"
#include "tests/short_run.h"

#if KVLAB_EMULATED
#include "kernels/device/emulated/emulator.h"
#else
namespace kvlab::emulated {
enum class Order : std::uint8_t { kForward, kBackward, kShuffled };
inline void set_order(Order) {}  // a GPU has its own
inline void limit_grid_yz(unsigned) {}
constexpr unsigned kMostGridYZ = 65535;
}  // namespace kvlab::emulated
#endif

namespace kvlab {

using Ints = std::vector<std::int32_t>;
using Longs = std::vector<std::int64_t>;
constexpr float kInf = std::numeric_limits<float>::infinity();

// The begins of ragged rows of these lengths, and the end of the last one.
inline Longs prefix_sums(const Ints& counts) {
  Longs first(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), first.begin() + 1);
  return first;
}

// While it is there, grids have no second block in y or z (emulated): a batch is not laid out there, where a GPU has 65,535 blocks.
struct FlatGrids {
  FlatGrids() { emulated::limit_grid_yz(1); }
  ~FlatGrids() { emulated::limit_grid_yz(emulated::kMostGridYZ); }
  FlatGrids(const FlatGrids&) = delete;
  FlatGrids& operator=(const FlatGrids&) = delete;
};

// Random numbers, the same in every run: normal with mean 0 and this standard deviation, rounded to T.
template <class T>
std::vector<T> random_elements(std::int64_t n, std::uint64_t seed, float deviation = 1.0F) {
  std::vector<T> x(static_cast<std::size_t>(n));
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, deviation);
  for (T& value : x) value = from_float<T>(normal(random));
  return x;
}

template <class T>
std::vector<float> floats(const std::vector<T>& x) {
  std::vector<float> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = to_float(x[i]);
  return y;
}

// Fails on the first NaN, infinity (`infinities`: that is not expected) or element that is further from `expected` than absolute +
// relative * |expected|.
inline testing::AssertionResult all_near(const std::vector<float>& got, const std::vector<float>& expected, double absolute,
                                         double relative, bool infinities = false) {
  if (got.size() != expected.size()) return testing::AssertionFailure() << got.size() << " elements, expected " << expected.size();
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (infinities && got[i] == expected[i]) continue;
    const double error = std::abs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    if (std::isfinite(got[i]) && error <= absolute + relative * std::abs(static_cast<double>(expected[i]))) continue;
    return testing::AssertionFailure() << "element " << i << " of " << got.size() << " is " << got[i] << ", expected " << expected[i];
  }
  return testing::AssertionSuccess();
}

// ||got - expected|| / ||expected||; infinite if anything is not finite.
inline double relative_error(const std::vector<float>& got, const std::vector<float>& expected) {
  double error = 0, norm = 0;
  if (got.size() != expected.size()) return INFINITY;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (!std::isfinite(got[i])) return INFINITY;
    const double difference = static_cast<double>(got[i]) - static_cast<double>(expected[i]);
    error += difference * difference, norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return norm == 0 ? (error == 0 ? 0.0 : INFINITY) : std::sqrt(error / norm);
}

// Runs `kernel`, which returns its output, under several orders of threads (on a GPU: several times): a race shows as a difference.
template <class F>
auto same_in_every_order(F&& kernel) {
  const auto first = kernel();
  const auto same = [&](const auto& other) {
    return other.size() == first.size() && (first.empty() || std::memcmp(other.data(), first.data(), first.size() * sizeof(first[0])) == 0);
  };
  if (cuda_backend() != CudaBackend::kEmulated) {
    EXPECT_TRUE(same(kernel())) << "two runs differ";
    return first;
  }
  for (const emulated::Order order : {emulated::Order::kShuffled, emulated::Order::kBackward}) {
    emulated::set_order(order);
    EXPECT_TRUE(same(kernel())) << "threads in another order give another result: a race";
    if (short_run()) break;
  }
  emulated::set_order(emulated::Order::kForward);
  return first;
}

// An array in CPU memory and one in device memory: with the same numbers, or, of n numbers, with zeros and with what is there.
template <class T>
class Twice {
 public:
  explicit Twice(std::vector<T> x) : host_(std::move(x)), device_(host_) {}
  explicit Twice(std::int64_t n) : host_(static_cast<std::size_t>(n)), device_(n) {}
  T* at(bool gpu) { return gpu ? device_.data() : host_.data(); }
  [[nodiscard]] const std::vector<T>& host() const { return host_; }
  [[nodiscard]] std::vector<T> device(const CudaContext& cuda) const { return device_.to_host(cuda.stream()); }

 private:
  std::vector<T> host_;
  DeviceBuffer<T> device_;
};
inline Twice<float> normals(std::int64_t n, std::uint64_t seed, float deviation = 1.0F) {
  return Twice<float>(random_elements<float>(n, seed, deviation));
}

// The numbers that an operation writes as a kernel, and on the CPU.
template <class T>
struct Both {
  std::vector<T> got, expected;
};
inline testing::AssertionResult all_near(const Both<float>& x, double absolute, double relative, bool infinities = false) {
  return all_near(x.got, x.expected, absolute, relative, infinities);
}
template <class T>
testing::AssertionResult equal(const Both<T>& x) {
  if (x.got == x.expected) return testing::AssertionSuccess();
  const auto [got, expected] = std::mismatch(x.got.begin(), x.got.end(), x.expected.begin());
  return testing::AssertionFailure() << "element " << got - x.got.begin() << " is " << *got << ", expected " << *expected;
}

// The message of the CudaError that `act` ends with.
template <class Act>
std::string cuda_error_of(Act&& act) {
  try {
    act();
  } catch (const CudaError& e) {
    return e.what();
  }
  return "no error";
}

// Tests of kernels: on a GPU where there is one, else skipped with the reason (KVLAB_REQUIRE_GPU=1: failed); in a build without CUDA
// by the emulator.
class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (num_gpus() > 0) {
      cuda_.emplace();
      return;
    }
    const char* require = std::getenv("KVLAB_REQUIRE_GPU");
    if (require != nullptr && std::string(require) == "1") FAIL() << "KVLAB_REQUIRE_GPU=1, and: " << why_no_gpu();
    GTEST_SKIP() << why_no_gpu();
  }
  CudaContext& cuda() { return *cuda_; }

  // op(gpu) on the CPU, then as a kernel.
  template <class Op>
  void run_both(Op&& op) {
    run_cpu(op(false));
    run_cuda(op(true), cuda());
  }
  // `start` after op(gpu, out): on the CPU, and as a kernel in several orders of threads.
  template <class T, class Op>
  Both<T> both(const std::vector<T>& start, Op&& op) {
    return both_from(
        start, [&] { return DeviceBuffer<T>(start); }, op);
  }
  // The same with n numbers, which a kernel must write.
  template <class T, class Op>
  Both<T> both(std::int64_t n, Op&& op) {
    return both_from(
        std::vector<T>(static_cast<std::size_t>(n)), [n] { return DeviceBuffer<T>(n); }, op);
  }

  // The same in CPU memory, which some operations write on a GPU too.
  template <class T, class Op>
  Both<T> on_host(const std::vector<T>& start, Op&& op) {
    Both<T> x{start, start};
    run_cpu(op(false, x.expected.data()));
    run_cuda(op(true, x.got.data()), cuda());
    return x;
  }
  // All of these arrays have the same numbers in both memories.
  template <class First, class... Rest>
  testing::AssertionResult same(const First& x, const Rest&... rest) {
    testing::AssertionResult result = equal(Both{x.device(cuda()), x.host()});
    if constexpr (sizeof...(rest) > 0) return result ? same(rest...) : result;
    return result;
  }

 private:
  template <class T, class Make, class Op>
  Both<T> both_from(std::vector<T> host, Make&& make, Op&& op) {
    run_cpu(op(false, host.data()));
    const auto got = same_in_every_order([&] {
      const DeviceBuffer<T> out = make();
      run_cuda(op(true, out.data()), cuda());
      return out.to_host(cuda().stream());
    });
    return {got, host};
  }

  std::optional<CudaContext> cuda_;
};

}  // namespace kvlab
