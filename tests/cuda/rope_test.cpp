#include <random>

#include "kernels/model/layer/layer.h"
#include "tests/cuda/cuda_fixture.h"

namespace kvlab {
namespace {

constexpr std::int64_t kLines = 37;

std::vector<float> table(std::int64_t half, bool cosines) {
  std::vector<float> x;
  for (std::int64_t p = 0; p < kLines; ++p)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p * 7) * std::pow(500.0, -static_cast<double>(i) / static_cast<double>(half));
      x.push_back(static_cast<float>(cosines ? std::cos(angle) : std::sin(angle)));
    }
  return x;
}

std::vector<std::int32_t> positions(std::int64_t tokens, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> p(static_cast<std::size_t>(tokens));
  for (std::int32_t& x : p) x = static_cast<std::int32_t>(random() % kLines);
  return p;
}

// The rotation of every token by (cos, sin) of double precision angles' tables, through the CPU version.
std::vector<float> expected(std::vector<float> x, const Rope& a, const std::vector<float>& cos, const std::vector<float>& sin,
                            const std::vector<std::int32_t>& to, const std::vector<std::int32_t>& from) {
  const std::int64_t half = a.head_dim / 2;
  std::vector<float> c, s;
  for (std::int64_t t = 0; t < a.tokens; ++t)
    for (std::int64_t i = 0; i < half; ++i) {
      const auto at = [&](const std::vector<std::int32_t>& p) {
        return static_cast<std::size_t>((p.empty() ? t : p[static_cast<std::size_t>(t)]) * half + i);
      };
      double x_cos = cos[at(to)], x_sin = sin[at(to)];
      if (!from.empty()) {
        const double y_cos = cos[at(from)], y_sin = sin[at(from)], both = x_cos * y_cos + x_sin * y_sin;
        x_sin = x_sin * y_cos - x_cos * y_sin, x_cos = both;
      }
      c.push_back(static_cast<float>(x_cos)), s.push_back(static_cast<float>(a.inverse ? -x_sin : x_sin));
    }
  run_cpu(Rope{x.data(), x.data(), c.data(), s.data(), nullptr, nullptr, a.tokens, a.heads, a.head_dim});
  return x;
}

class RopeCuda : public CudaTest {
 protected:
  template <class T>
  void check(std::int64_t tokens, std::int64_t heads, std::int64_t head_dim, bool listed, bool moved, bool inverse, double tolerance) {
    SCOPED_TRACE(testing::Message() << tokens << " x " << heads << " x " << head_dim << " listed " << listed << " moved " << moved
                                    << " inverse " << inverse);
    const auto x = random_elements<T>(tokens * heads * head_dim, 11);
    const auto cos = table(head_dim / 2, true), sin = table(head_dim / 2, false);
    const auto to = listed ? positions(tokens, 1) : std::vector<std::int32_t>{},
               from = moved ? positions(tokens, 2) : std::vector<std::int32_t>{};
    const DeviceBuffer<float> device_cos(cos), device_sin(sin);
    const DeviceBuffer<std::int32_t> device_to(to), device_from(from);
    Rope a{
        nullptr, nullptr, device_cos.data(), device_sin.data(), listed ? device_to.data() : nullptr, moved ? device_from.data() : nullptr,
        tokens,  heads,   head_dim};
    a.inverse = inverse, a.type = kElementType<T>;
    const auto out = same_in_every_order([&] {
      const DeviceBuffer<T> in_place(x);
      a.in = a.out = in_place.data();
      run_cuda(a, cuda());
      return in_place.to_host(cuda().stream());
    });
    EXPECT_TRUE(all_near(floats(out), expected(floats(x), a, cos, sin, to, from), tolerance * 4, tolerance));
  }
};

// One rounding of a sum of two products of numbers up to 4; products cancel, hence the absolute part.
TEST_F(RopeCuda, EqualsCpuVersion) {
  for (const std::int64_t heads : {1, 3, 4, 5, 40})
    for (const std::int64_t head_dim : {2, 6, 16, 64, 128}) {
      check<bf16>(3, heads, head_dim, false, false, false, 0x1p-8);
      check<f16>(2, heads, head_dim, true, false, true, 0x1p-11);
      check<float>(1, heads, head_dim, true, true, false, 1e-6);
    }
  check<bf16>(33, 8, 128, true, true, true, 0x1p-8);
  check<bf16>(2, 128, 256, true, false, false, 0x1p-8);
  check<bf16>(0, 8, 128, false, false, false, 0);
}

// A move equals undoing the old rotation and applying the new one, and the inverse undoes a rotation.
TEST_F(RopeCuda, MovesKeysFromPositionToPosition) {
  constexpr std::int64_t kTokens = 19, kHeads = 2, kDim = 32;
  const auto x = random_elements<float>(kTokens * kHeads * kDim, 5);
  const DeviceBuffer<float> cos(table(kDim / 2, true)), sin(table(kDim / 2, false)), old_keys(x), direct(x);
  const DeviceBuffer<std::int32_t> old_position(positions(kTokens, 3)), new_position(positions(kTokens, 4));
  const auto turn = [&](float* keys, const std::int32_t* to, const std::int32_t* from, bool inverse) {
    Rope a{keys, keys, cos.data(), sin.data(), to, from, kTokens, kHeads, kDim};
    a.inverse = inverse, a.type = ElementType::kF32;
    run_cuda(a, cuda());
  };
  turn(old_keys.data(), old_position.data(), nullptr, false);
  turn(old_keys.data(), new_position.data(), old_position.data(), false);
  turn(direct.data(), new_position.data(), nullptr, false);
  EXPECT_TRUE(all_near(old_keys.to_host(cuda().stream()), direct.to_host(cuda().stream()), 4e-6, 0));  // three roundings of numbers to 4
  turn(old_keys.data(), new_position.data(), nullptr, true);
  EXPECT_TRUE(all_near(old_keys.to_host(cuda().stream()), x, 6e-6, 0));
}

// Queries, keys and values are adjacent in one product's output; rotated vectors may go elsewhere.
TEST_F(RopeCuda, TakesStrides) {
  constexpr std::int64_t kTokens = 5, kHeads = 3, kDim = 16, kIn = 96, kOut = 56;
  const auto x = random_elements<bf16>(kTokens * kIn, 6);
  const auto cos = table(kDim / 2, true), sin = table(kDim / 2, false);
  const DeviceBuffer<float> device_cos(cos), device_sin(sin);
  const DeviceBuffer<bf16> in(x), out(std::vector<bf16>(kTokens * kOut, bf16{0x4000}));
  Rope a{in.data() + 8, out.data(), device_cos.data(), device_sin.data(), nullptr, nullptr, kTokens, kHeads, kDim, kIn,
         kOut,          false,      ElementType::kBf16};
  run_cuda(a, cuda());
  std::vector<float> dense, got, beside;
  const std::vector<float> all = floats(out.to_host(cuda().stream())), source = floats(x);
  for (std::int64_t t = 0; t < kTokens; ++t) {
    dense.insert(dense.end(), source.begin() + t * kIn + 8, source.begin() + t * kIn + 8 + kHeads * kDim);
    got.insert(got.end(), all.begin() + t * kOut, all.begin() + t * kOut + kHeads * kDim);
    beside.insert(beside.end(), all.begin() + t * kOut + kHeads * kDim, all.begin() + (t + 1) * kOut);
  }
  EXPECT_TRUE(all_near(got, expected(dense, a, cos, sin, {}, {}), 0x1p-6, 0x1p-8));
  EXPECT_EQ(beside, std::vector<float>(beside.size(), 2.0F));
  a.head_dim = 15;
  EXPECT_THROW(run_cuda(a, cuda()), CudaError);
}

}  // namespace
}  // namespace kvlab
