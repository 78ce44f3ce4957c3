#include "base/config/key_map.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <unordered_map>

namespace kvlab {
namespace {

struct Count {
  std::uint32_t n = 0;
  bool operator==(const Count&) const = default;
};

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
