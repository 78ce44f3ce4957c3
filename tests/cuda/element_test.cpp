#include "kernels/element.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvlab {
namespace {

// Every number of the type comes back; values between two numbers go to the nearer, and from the middle to the even one.
template <class T>
void round_trips(unsigned count, double largest) {
  double before = NAN;
  for (unsigned bits = 0; bits < count; ++bits) {
    const T x{static_cast<decltype(T::bits)>(bits)};
    const float value = to_float(x);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(to_float(from_float<T>(value)))) << bits;
      continue;
    }
    EXPECT_EQ(from_float<T>(value).bits, bits);
    if (std::isinf(value)) continue;
    if (bits > 0 && value > 0 && before >= 0 && value <= largest) {
      const double middle = (before + value) / 2;
      EXPECT_EQ(from_float<T>(static_cast<float>(middle)).bits, bits % 2 == 0 ? bits : bits - 1) << bits;
      EXPECT_EQ(from_float<T>(std::nextafter(static_cast<float>(middle), INFINITY)).bits, bits);
      EXPECT_EQ(from_float<T>(std::nextafter(static_cast<float>(middle), 0.0F)).bits, bits - 1);
    }
    before = value;
  }
}

TEST(Element, RoundsToNearestEven) {
  round_trips<f16>(65536, 65504);
  round_trips<fp8>(256, 448);
  round_trips<bf16>(65536, 0x1.FEp127);
}

TEST(Element, KeepsTheEnds) {
  EXPECT_EQ(to_float(from_float<f16>(65519.0F)), 65504.0F);
  EXPECT_TRUE(std::isinf(to_float(from_float<f16>(65520.0F))));
  EXPECT_EQ(to_float(from_float<fp8>(1e9F)), 448.0F);
  EXPECT_EQ(to_float(from_float<fp8>(-INFINITY)), -448.0F);
  EXPECT_TRUE(std::isnan(to_float(from_float<bf16>(NAN))));
  EXPECT_EQ(to_float(from_float<f16>(0x1p-25F)), 0.0F);
  EXPECT_EQ(to_float(from_float<f16>(0x1.8p-25F)), 0x1p-24F);
}

}  // namespace
}  // namespace kvlab
