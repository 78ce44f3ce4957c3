#include "base/big_array.h"

#include <gtest/gtest.h>

#include <optional>

namespace kvlab {
namespace {

constexpr std::size_t kLarge = 1 << 20;  // floats: more than what is left to the heap

// Constructed before any memory is taken, so destroyed after all later objects; the sanitizer sees what it then touches.
std::optional<BigArray<float>> lives_to_the_end;

TEST(BigArray, MayLiveAsLongAsTheProgram) {
  lives_to_the_end.emplace(kLarge);
  lives_to_the_end->data()[kLarge - 1] = 1;
  EXPECT_EQ(lives_to_the_end->size(), kLarge);
}

TEST(BigArray, MemoryIsKeptForTheNextOfItsSize) {
  float* first = nullptr;
  {
    const BigArray<float> a(kLarge + 7);
    first = const_cast<float*>(a.data());
  }
  EXPECT_GE(big_memory::idle_bytes(), (kLarge + 7) * sizeof(float));
  const BigArray<float> b(kLarge + 7);
  EXPECT_EQ(b.data(), first);
}

}  // namespace
}  // namespace kvlab
