// Every case that kernel_bench and `kvlab calibrate` time, at a small shape: it runs, and its own check finds it right.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>

#include "calibrate/cases/op_case.h"
#include "calibrate/cases/timing.h"
#include "kernels/model/layer/layer.h"
#include "tests/bench/fake_device.h"

namespace kvlab {
namespace {

void check_all(TimedDevice& device) {
  for (const KernelFamily& family : kernel_families()) {
    if (family.device != device.kind()) continue;
    ASSERT_FALSE(family.small.empty()) << family.op << "/" << family.format;
    for (const Shape& shape : family.small) {
      SCOPED_TRACE(family.case_name(shape));
      const auto prepared = family.prepare(device, shape, Rotation{4096, 3});
      EXPECT_TRUE(prepared->matches());
      EXPECT_GT(prepared->bytes(), 0);
      prepared->run(prepared->copies());  // around the copies once
      device.synchronize();
      EXPECT_TRUE(prepared->matches()) << "after another run";
    }
  }
}

TEST(KernelCases, AllAreRightOnTheCpu) { check_all(*make_cpu_device()); }

TEST(KernelCases, AllAreRightOnTheGpu) {
  if (num_gpus() == 0) {
    const char* require = std::getenv("KVLAB_REQUIRE_GPU");
    if (require != nullptr && std::string(require) == "1") FAIL() << "KVLAB_REQUIRE_GPU=1, and: " << why_no_gpu();
    GTEST_SKIP() << why_no_gpu();
  }
  check_all(*make_gpu_device(0));
}

TEST(KernelCases, NamesSayOperationFormatAndShapeAndAreUnique) {
  std::set<std::pair<DeviceKind, std::string>> names;
  for (const KernelFamily& family : kernel_families()) {
    for (const Shape& shape : family.shapes) {
      EXPECT_EQ(shape.size(), family.axes.size()) << family.op;
      EXPECT_TRUE(names.insert({family.device, family.case_name(shape)}).second) << family.case_name(shape);
    }
  }
  const KernelFamily* decode = find_family(DeviceKind::kCpu, "decode_attention", "f32");
  ASSERT_NE(decode, nullptr);
  EXPECT_EQ(decode->case_name({{"batch", 64}, {"len", 4096}, {"q_heads", 32}, {"kv_heads", 8}, {"head_dim", 128}}),
            "decode_attention/f32/b64_n4096_q32_kv8_d128");
}

// bench/README.md states a goal for each of these.
TEST(KernelCases, EveryGoalHasItsCase) {
  std::set<std::string> names;
  for (const KernelFamily& family : kernel_families())
    for (const Shape& shape : family.shapes)
      if (family.device == DeviceKind::kGpu) names.insert(family.case_name(shape));
  std::ifstream readme(KVLAB_SOURCE_DIR "/bench/README.md");
  int goals = 0;
  for (std::string line; std::getline(readme, line);) {
    if (!line.starts_with("| `")) continue;
    const std::string name = line.substr(3, line.find('`', 3) - 3);
    if (std::count(name.begin(), name.end(), '/') != 2) continue;  // another table
    EXPECT_TRUE(names.contains(name)) << name;
    ++goals;
  }
  EXPECT_GE(goals, 18);
}

// An operation that leaves one element unwritten: what was there before is a NaN.
struct Forgetful {
  float* out = nullptr;
  std::int64_t n = 0;
};
void run_cpu(const Forgetful& a) {
  for (std::int64_t i = 0; i + 1 < a.n; ++i) a.out[i] = 1.0F;
}

TEST(KernelCases, AnUnwrittenElementIsAWrongResult) {
  OpRecipe<Forgetful> recipe;
  recipe.build = [](Buffers& b, const Shape& s) { return Forgetful{b.room<float>(s.at("n")), s.at("n")}; };
  recipe.work = [](const Forgetful& a, const Shape&) { return CaseWork{4 * a.n, 0, {}}; };
  recipe.matches = [](TimedDevice& device, const Forgetful& a, const std::function<void()>& run) {
    run();
    RelativeError error;
    for (const float x : read_floats(device, a.out, a.n)) error.add(x, 1.0);
    return error.below(1e-4);
  };
  const auto cpu = make_cpu_device();
  EXPECT_FALSE(preparing(recipe)(*cpu, {{"n", 100}}, {})->matches());
}

TEST(KernelCases, CopiesFillTheRotation) {
  const KernelFamily* silu = find_family(DeviceKind::kCpu, "silu_mul", "f32");
  ASSERT_NE(silu, nullptr);
  const auto cpu = make_cpu_device();
  const Shape shape{{"tokens", 1}, {"width", 256}};  // three arrays of 1 KiB
  EXPECT_EQ(silu->prepare(*cpu, shape, {})->copies(), 1);
  EXPECT_EQ(silu->prepare(*cpu, shape, {30 << 10})->copies(), 10);
  EXPECT_EQ(silu->prepare(*cpu, shape, {30 << 10, 4})->copies(), 4);
  EXPECT_EQ(silu->prepare(*cpu, {{"tokens", 64}, {"width", 256}}, {30 << 10})->copies(), 1) << "one copy is large enough";
}

// Weights of 1 KiB, activations of 256 bytes in and out.
struct Layer {
  const float *w = nullptr, *x = nullptr;
  float* y = nullptr;
};
void run_cpu(const Layer&) {}

// Notes what it reads.
struct Reading {
  const float* x = nullptr;
  std::vector<const float*>* read = nullptr;
};
void run_cpu(const Reading& a) { a.read->push_back(a.x); }

// The operands of each copy, in order.
std::vector<Layer> copies_of(const Rotation& rotation) {
  auto made = std::make_shared<std::vector<Layer>>();
  OpRecipe<Layer> recipe;
  recipe.build = [made](Buffers& b, const Shape&) {
    made->push_back({b.floats(256), b.activations().floats(32), b.activations().room<float>(32)});
    return made->back();
  };
  recipe.work = [](const Layer&, const Shape&) { return CaseWork{1, 0, {}}; };
  recipe.matches = [](TimedDevice&, const Layer&, const std::function<void()>&) { return true; };
  const auto cpu = make_cpu_device();
  const auto prepared = preparing(recipe)(*cpu, {}, rotation);
  EXPECT_EQ(prepared->copies(), static_cast<std::int64_t>(made->size()));
  for (const Layer& layer : *made) EXPECT_EQ(layer.x[31], made->at(static_cast<std::size_t>(&layer - made->data()) % 2).x[31]);
  return *made;
}

TEST(KernelCases, ActivationsRotateThroughCopiesOfTheirOwn) {
  const std::vector<Layer> four = copies_of({4096, 100, 512});
  ASSERT_EQ(four.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(four[i].w, four[j].w);
    EXPECT_EQ(four[i].x, four[i % 2].x);
    EXPECT_EQ(four[i].y, four[i % 2].y);
  }
  EXPECT_NE(four[0].x, four[1].x);
  const std::vector<Layer> two = copies_of({1024, 100, 512});  // one set of weights under two of activations
  ASSERT_EQ(two.size(), 2U);
  EXPECT_EQ(two[0].w, two[1].w);
  EXPECT_NE(two[0].x, two[1].x);
  const std::vector<Layer> together = copies_of({2 * 1280, 100});
  ASSERT_EQ(together.size(), 2U);
  EXPECT_NE(together[0].w, together[1].w);
  EXPECT_NE(together[0].x, together[1].x);
}

// The address that each of three calls reads first, in a case of four copies.
std::vector<const float*> read_in_three_calls(TimedDevice& device, SharedNumbers* shared) {
  auto read = std::make_shared<std::vector<const float*>>();
  OpRecipe<Reading> recipe;
  recipe.build = [read](Buffers& b, const Shape&) { return Reading{b.floats(1024), read.get()}; };
  recipe.work = [](const Reading&, const Shape&) { return CaseWork{1, 0, {}}; };
  Rotation rotation{4 * 4096, 100};
  rotation.shared = shared;
  const auto prepared = preparing(recipe)(device, {}, rotation);
  EXPECT_EQ(prepared->copies(), 4);
  for (std::int64_t call = 0; call < 3; ++call) prepared->run(call);
  return *read;
}

TEST(KernelCases, SharedNumbersAreReadOnFromWhereTheCaseBeforeStopped) {
  const auto cpu = make_cpu_device();
  SharedNumbers shared(*cpu);
  std::vector<const float*> all = read_in_three_calls(*cpu, &shared);
  for (int more = 0; more < 3; ++more) {
    for (const float* x : read_in_three_calls(*cpu, &shared)) all.push_back(x);
  }
  ASSERT_EQ(all.size(), 12U);
  for (std::size_t i = 0; i < all.size(); ++i) EXPECT_EQ(all[i], all[i % 4]) << i << ": three cases read the four copies in turn";
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(all[i], all[0] + 1024 * i);
}

TEST(KernelCases, SharedNumbersAreNormalOfTheirTypeAndLaidOutOnce) {
  const auto cpu = make_cpu_device();
  SharedNumbers shared(*cpu);
  EXPECT_EQ(shared.begin_case(), 0);
  constexpr std::int64_t kMany = 20 << 20;  // more than a piece
  void* const first = shared.take(kMany, ElementType::kF32);
  for (const ElementType type : {ElementType::kF32, ElementType::kBf16, ElementType::kF16}) {
    double sum = 0, squares = 0;
    for (const float x : read_floats(*cpu, shared.take(10000, type), 10000, type)) sum += x, squares += double{x} * x;
    EXPECT_NEAR(sum / 10000, 0, 0.05);
    EXPECT_NEAR(squares / 10000, 1, 0.05);
  }
  shared.stop_reading_at(777);
  EXPECT_EQ(shared.begin_case(), 777);
  EXPECT_EQ(shared.take(kMany, ElementType::kF32), first);
}

// How times are taken, on a device whose time is made up.

class FakeCase final : public PreparedCase {
 public:
  explicit FakeCase(std::int64_t copies) : copies_(copies) {}
  void run(std::int64_t call) override { seen.insert(call % copies_), ++calls; }
  [[nodiscard]] std::int64_t copies() const override { return copies_; }
  bool matches() override { return true; }
  [[nodiscard]] std::int64_t bytes() const override { return 1; }
  [[nodiscard]] std::int64_t flops() const override { return 1; }
  std::set<std::int64_t> seen;
  std::int64_t calls = 0;

 private:
  std::int64_t copies_;
};

TEST(Timing, IsTheMedianOfOneCallWithTheQuartilesAsSpread) {
  // Samples 2, 3, ... take 10, 11, 12, 13, 14, 10, ... us a call; the first two are warm-up and slow.
  FakeDevice device([](std::int64_t i, std::int64_t calls) {
    return TimedDevice::Sample{static_cast<double>(calls) * (i < 2 ? 500e-6 : (10 + static_cast<double>((i - 2) % 5)) * 1e-6), 0};
  });
  FakeCase fake(1);
  const Timing t = time_case(fake, device, {0, 25, 25});
  EXPECT_EQ(t.samples, 25);
  EXPECT_NEAR(t.seconds, 12e-6, 1e-12);
  EXPECT_NEAR(t.spread_frac, 2.0 / 12, 1e-9);
  EXPECT_NEAR(t.mean_frac, 1, 1e-9);
}

TEST(Timing, AStallMovesTheMeanAndNotTheMedian) {
  FakeDevice device([](std::int64_t i, std::int64_t calls) {
    return TimedDevice::Sample{static_cast<double>(calls) * (i == 7 ? 1e-3 : 1e-5), 0};
  });
  FakeCase fake(1);
  const Timing t = time_case(fake, device, {0, 25, 25});
  EXPECT_NEAR(t.seconds, 1e-5, 1e-12);
  EXPECT_NEAR(t.mean_frac, (24 + 100) / 25.0, 1e-9);
}

TEST(Timing, ShortCallsAreTimedTogetherAndGoThroughAllCopies) {
  FakeDevice device([](std::int64_t, std::int64_t calls) { return TimedDevice::Sample{static_cast<double>(calls) * 2e-6, 0}; });
  FakeCase fake(100);
  const Timing t = time_case(fake, device, {0, 10, 10, 50e-6});
  EXPECT_EQ(t.calls_per_sample, 25);
  EXPECT_NEAR(t.seconds, 2e-6, 1e-12);
  EXPECT_EQ(fake.seen.size(), 100U);
}

TEST(Timing, TheFirstPassOverTheCopiesIsNotCounted) {
  // Fresh copies are slow: each of the first 100 calls.
  const FakeDevice::Clock clock = [](std::int64_t i, std::int64_t calls) {
    return TimedDevice::Sample{static_cast<double>(calls) * (i < 100 ? 1e-3 : 1e-4), 0};
  };
  FakeDevice device(clock);
  FakeCase fake(100);
  TimingPlan plan{0, 10, 10};
  plan.warm_up_seconds = 1;
  EXPECT_NEAR(time_case(fake, device, plan).seconds, 1e-4, 1e-12);
  EXPECT_EQ(fake.calls, 110);
  plan.warm_up_seconds = 0.02;  // 20 of the copies
  FakeDevice again(clock);
  FakeCase other(100);
  EXPECT_NEAR(time_case(other, again, plan).seconds, 1e-3, 1e-12);
  EXPECT_EQ(other.calls, 30);
}

TEST(Timing, SamplesAtALowClockAreThrownAway) {
  FakeDevice device([](std::int64_t i, std::int64_t calls) {
    const bool is_low = i % 3 == 0;
    return TimedDevice::Sample{static_cast<double>(calls) * (is_low ? 20e-6 : 10e-6), is_low ? 0.9 : 1.8};
  });
  FakeCase fake(1);
  const Timing t = time_case(fake, device, {0, 30, 30});
  EXPECT_EQ(t.samples, 20);
  EXPECT_EQ(t.discarded, 10);
  EXPECT_EQ(t.spread_frac, 0);
}

TEST(Timing, WhereTheClockIsMostlyLowNothingIsThrownAway) {
  FakeDevice device([](std::int64_t i, std::int64_t calls) {
    return TimedDevice::Sample{static_cast<double>(calls) * 1e-5, i % 4 == 0 ? 1.8 : 0.9};
  });
  FakeCase fake(1);
  EXPECT_EQ(time_case(fake, device, {0, 20, 20}).discarded, 0);
}

TEST(Timing, EndsWithTheTimeAllowed) {
  FakeDevice device([](std::int64_t, std::int64_t calls) { return TimedDevice::Sample{static_cast<double>(calls) * 1e-2, 0}; });
  FakeCase fake(1);
  EXPECT_EQ(time_case(fake, device, {0.095, 3, 2000}).samples, 10);
  EXPECT_EQ(time_case(fake, device, {0.01, 3, 2000}).samples, 3) << "the least";
}

}  // namespace
}  // namespace kvlab
