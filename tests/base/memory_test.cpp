#include <gtest/gtest.h>

#include <optional>

#include "base/big_array.h"
#include "base/free_memory.h"

namespace kvlab {
namespace {

constexpr std::uint64_t kMiB = 1 << 20;
const std::string kMeminfo =
    "MemTotal:       24684096 kB\nMemFree:          102400 kB\nMemAvailable:    8388608 kB\nSwapCached:  7 kB\nSwapFree:    1048576 kB\n";

TEST(FreeMemory, IsWhatIsAvailableAndSwapUpToALimit) {
  EXPECT_EQ(free_memory(kMeminfo, "", ""), 9216 * kMiB);
  EXPECT_EQ(free_memory("MemAvailable: 1024 kB", "", ""), kMiB);  // no swap
  EXPECT_EQ(free_memory(kMeminfo, "max\n", "max\n"), 9216 * kMiB);
  EXPECT_EQ(free_memory(kMeminfo, "1073741824\n", "max\n"), 2048 * kMiB);
  EXPECT_EQ(free_memory(kMeminfo, "1073741824\n", "0\n"), 1024 * kMiB);
  EXPECT_EQ(free_memory(kMeminfo, "99999999999999\n", "99999999999999\n"), 9216 * kMiB);
  EXPECT_FALSE(free_memory("", "1073741824\n", ""));
  EXPECT_FALSE(free_memory("MemTotal: 24684096 kB\nMemFree: 102400 kB\n", "", ""));
  EXPECT_FALSE(free_memory("MemAvailable: much\n", "", ""));
}

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
