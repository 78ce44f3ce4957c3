#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <optional>
#include <unordered_map>

#include "base/big_array.h"
#include "base/config/key_map.h"
#include "base/free_memory.h"
#include "base/zeroed_array.h"

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

struct Count {
  std::uint32_t n = 0;
  bool operator==(const Count&) const = default;
};

TEST(ZeroedArray, IsZeroAndTakesNoMemoryUntilWritten) {
  ZeroedArray<int> small(3), huge(std::size_t{1} << 30);
  EXPECT_EQ(small[2] + huge[huge.size() - 1], 0);
  huge[huge.size() / 2] = 7;
  ZeroedArray<int> moved = std::move(huge);
  EXPECT_EQ(moved[moved.size() / 2], 7);
  EXPECT_EQ(ZeroedArray<int>().size() + ZeroedArray<int>(0).size(), 0U);
}

TEST(KeyMap, IsEmptyBeforeAndAfterReset) {
  KeyMap<Count> map;
  EXPECT_EQ(map.find(0), nullptr);
  map.reset(0);
  EXPECT_EQ(map.find(0), nullptr);
  map.reset(1);
  map.add(7).value.n = 1;
  EXPECT_EQ(map.size(), 1U);
  map.reset(1);
  EXPECT_EQ(map.find(7), nullptr);
  EXPECT_EQ(map.size(), 0U);
}

TEST(KeyMap, ReserveKeepsWhatIsThere) {
  KeyMap<Count> map;
  map.reset(3);
  for (std::uint64_t key = 0; key < 1000; ++key) {
    if (map.size() == map.max_keys()) map.reserve(2 * map.max_keys());
    map.add(key).value.n = static_cast<std::uint32_t>(key + 1);
  }
  for (std::uint64_t key = 0; key < 1000; ++key) {
    ASSERT_NE(map.find(key), nullptr);
    EXPECT_EQ(map.find(key)->value.n, key + 1);
  }
  EXPECT_EQ(map.size(), 1000U);
}

// Few key values and a map that is always near its limit: long probe runs, runs that wrap around, shifts across both.
RC_GTEST_PROP(KeyMap, AgreesWithTheStandardMap, ()) {
  const auto max_keys = *rc::gen::inRange<std::size_t>(1, 40);
  KeyMap<Count> map;
  map.reset(max_keys);
  std::unordered_map<std::uint64_t, std::uint32_t> expected;
  const auto spread = *rc::gen::element<std::uint64_t>(1, 1ULL << 58, 0x9e3779b97f4a7c15ULL);
  const auto keys = *rc::gen::container<std::vector<std::uint64_t>>(400, rc::gen::inRange<std::uint64_t>(0, 60));
  std::uint32_t step = 0;
  for (const std::uint64_t raw : keys) {
    const std::uint64_t key = raw * spread;
    ++step;
    if (expected.contains(key) && step % 3 != 0) {
      map.erase(*map.find(key));
      expected.erase(key);
    } else if (expected.contains(key) || expected.size() < max_keys) {
      map.add(key).value.n = step;
      expected[key] = step;
    }
    RC_ASSERT(map.size() == expected.size());
    for (std::uint64_t k = 0; k < 60; ++k) {
      const auto* slot = map.find(k * spread);
      const auto found = expected.find(k * spread);
      RC_ASSERT((slot != nullptr) == (found != expected.end()));
      if (slot) RC_ASSERT(slot->value.n == found->second);
    }
  }
}

}  // namespace
}  // namespace kvlab
