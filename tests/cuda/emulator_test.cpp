#include "kernels/device/cuda/events.h"
#include "kernels/device/cuda/upload.h"
#include "tests/cuda/cuda_fixture.h"
#include "tests/cuda/emulator_kernels.h"

namespace kvlab {
namespace {

using namespace emulator_test;  // NOLINT

class Emulator : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    numbers_.resize(64);
    std::iota(numbers_.begin(), numbers_.end(), 1);
  }
  std::vector<int> reverse(emulated::Order order, bool waits) {
    emulated::set_order(order);
    const DeviceBuffer<int> in(numbers_), out(64);
    run_reverse(in.data(), out.data(), waits, cuda());
    emulated::set_order(emulated::Order::kForward);
    return out.to_host(cuda().stream());
  }
  std::vector<int> numbers_;
};

TEST_F(Emulator, OrdersAgreeWhereABarrierIs) {
  const std::vector<int> expected(numbers_.rbegin(), numbers_.rend());
  for (const auto order : {emulated::Order::kForward, emulated::Order::kBackward, emulated::Order::kShuffled})
    EXPECT_EQ(reverse(order, true), expected);
}

TEST_F(Emulator, CopiesArriveWhenTheyAreWaitedFor) {
  const DeviceBuffer<int> in(numbers_), out(32);
  run_copy(in.data(), out.data(), true, cuda());
  EXPECT_EQ(out.to_host(cuda().stream()), std::vector<int>(numbers_.begin(), numbers_.begin() + 32));
}

TEST_F(Emulator, AGraphKeepsTheArgumentsItWasRecordedWith) {
  const DeviceBuffer<int> out(std::vector<int>{0});
  int value = 1;
  const CudaGraph graph(cuda(), [&] { run_set(out.data(), value, cuda()); });
  EXPECT_EQ(out.to_host(), std::vector<int>{0}) << "recording runs nothing";
  value = 2;
  graph.launch(cuda());
  EXPECT_EQ(out.to_host(cuda().stream()), std::vector<int>{1});
}

TEST_F(Emulator, RefusesGridsThatAreTooLarge) {
  const DeviceBuffer<int> out(1);
  EXPECT_NO_THROW(run_set(out.data(), Blocks{3, 2, 2}, cuda()));
  for (const Blocks grid : {Blocks{1, 65536, 1}, Blocks{1, 1, 65536}, Blocks{0x80000000U, 1, 1}})
    EXPECT_THROW(run_set(out.data(), grid, cuda()), CudaError) << grid.x << " x " << grid.y << " x " << grid.z;
}

#if KVLAB_EMULATED  // mistakes that a GPU need not show, or may not survive

TEST_F(Emulator, OrdersDifferWhereABarrierIsMissing) {
  EXPECT_NE(reverse(emulated::Order::kForward, false), reverse(emulated::Order::kBackward, false));
}

TEST_F(Emulator, NamesTheKernelWhoseLanesDoNotMeet) {
  const DeviceBuffer<int> out(32);
  EXPECT_THAT(cuda_error_of([&] { run_barrier_in_a_branch(out.data(), cuda()); }), testing::HasSubstr("barrier_in_a_branch"));
}

TEST_F(Emulator, CopiesThatAreNotWaitedForHaveNotArrived) {
  const DeviceBuffer<int> in(numbers_), out(32);
  run_copy(in.data(), out.data(), false, cuda());
  EXPECT_EQ(out.to_host(cuda().stream()), std::vector<int>(32, -1));  // the initial value of shared memory
}

TEST_F(Emulator, WhatIsCopiedToTheHostArrivesWhenItIsWaitedFor) {
  const DeviceBuffer<int> in(numbers_);
  std::vector<int> host(64, 0);
  cuda::to_host(host.data(), in.data(), in.bytes(), cuda().stream());
  EXPECT_NE(host, numbers_);
  const CudaContext other;
  other.synchronize();
  EXPECT_NE(host, numbers_) << "another stream";
  cuda().synchronize();
  EXPECT_EQ(host, numbers_);
}

TEST_F(Emulator, NoGraphCopiesFromTheHost) {
  DeviceBuffer<int> in(64);
  EXPECT_THROW(CudaGraph(cuda(), [&] { in.copy_from(numbers_, cuda().stream()); }), CudaError);
  EXPECT_THROW(CudaGraph(cuda(), [&] { DeviceBuffer<int>(64); }), CudaError);
  EXPECT_THROW(CudaGraph(cuda(), [&] { cuda().synchronize(); }), CudaError);
  EXPECT_NO_THROW(run_set(in.data(), 1, cuda())) << "the recording is over";
}

TEST_F(Emulator, ScratchIsNotWhatItWas) {
  const auto held = [&] {
    const CudaContext::Frame frame(cuda());
    int* p = cuda().scratch<int>(1);
    const int before = download(cuda(), p, 1)[0];
    run_set(p, 5, cuda());
    return before;
  };
  EXPECT_EQ(held(), -1);
  EXPECT_EQ(held(), -1);
}

#if !defined(KVLAB_SANITIZED)

TEST_F(Emulator, TheHostDoesNotFollowPointersToDeviceMemory) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const DeviceBuffer<int> in(numbers_);
  EXPECT_DEATH(static_cast<void>(*static_cast<const volatile int*>(in.data())), "host code followed a pointer to device memory");
  EXPECT_DEATH(in.data()[3] = 1, "host code followed a pointer to device memory");
}

TEST_F(Emulator, MemoryIsTakenForWhatItIs) {
  const DeviceBuffer<int> device(64);
  std::vector<int> host(64);
  EXPECT_THROW(cuda::to_device(host.data(), numbers_.data(), 4, cuda().stream()), CudaError);
  EXPECT_THROW(cuda::to_host(device.data(), device.data() + 1, 4, cuda().stream()), CudaError);
  EXPECT_THROW(cuda::fill(host.data(), 0, 4, cuda().stream()), CudaError);
#if __has_builtin(__builtin_clear_padding)
  EXPECT_THROW(run_set(host.data(), 1, cuda()), CudaError);
  int* const pinned = static_cast<int*>(cuda::allocate_pinned(4));
  EXPECT_NO_THROW(run_set(pinned, 1, cuda()));
  EXPECT_EQ(*pinned, 1);
  cuda::free_pinned(pinned);
#endif
}

#endif

#endif

TEST_F(Emulator, WarpMultipliesMatrices) {
  const auto a = random_elements<f16>(256, 1), b = random_elements<f16>(128, 2);
  const DeviceBuffer<f16> device_a(a), device_b(b);
  const DeviceBuffer<float> c(128);
  run_multiply(device_a.data(), device_b.data(), c.data(), cuda());
  std::vector<float> expected(128, 0.0F);
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 8; ++j)
      for (std::size_t k = 0; k < 16; ++k) expected[i * 8 + j] += to_float(a[i * 16 + k]) * to_float(b[j * 16 + k]);
  EXPECT_TRUE(all_near(c.to_host(cuda().stream()), expected, 1e-4, 1e-4));
}

TEST_F(Emulator, LoadsMatricesAsMmaWantsThem) {
  std::vector<f16> a(256);
  for (std::size_t i = 0; i < 256; ++i) a[i].bits = static_cast<std::uint16_t>(i);
  const DeviceBuffer<f16> device_a(a);
  const DeviceBuffer<std::uint32_t> plain(128), transposed(128);
  run_load(device_a.data(), plain.data(), transposed.data(), cuda());
  const auto p = plain.to_host(cuda().stream()), t = transposed.to_host(cuda().stream());
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    for (std::uint32_t m = 0; m < 4; ++m) {
      const std::uint32_t row = m % 2 * 8, column = m / 2 * 8, g = lane / 4, c = 2 * (lane % 4);
      const std::uint32_t at = (row + g) * 16 + column + c, at_t = (row + c) * 16 + column + g;
      EXPECT_EQ(p[lane * 4 + m], at | (at + 1) << 16);
      EXPECT_EQ(t[lane * 4 + m], at_t | (at_t + 16) << 16);
    }
  }
}

TEST_F(Emulator, BlockScans) {
  for (const int n : {1, 31, 32, 33, 200, 256}) {
    std::vector<int> in(static_cast<std::size_t>(n)), expected(in.size() + 1);
    for (int i = 0; i < n; ++i) in[static_cast<std::size_t>(i)] = i * i % 17 - 3;
    std::partial_sum(in.begin(), in.end(), expected.begin() + 1);
    const DeviceBuffer<int> device_in(in), out(n + 1);
    run_scan(device_in.data(), out.data(), n, cuda());
    EXPECT_EQ(out.to_host(cuda().stream()), expected) << n;
  }
}

}  // namespace
}  // namespace kvlab
