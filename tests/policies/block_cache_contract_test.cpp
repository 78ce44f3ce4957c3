#include <rapidcheck/gtest.h>

#include "tests/policies/block_cache_host.h"

namespace kvlab {
namespace {

const std::vector<std::string> kAll = {"arc", "belady", "block_groups", "fifo", "gdsf", "lfu", "lru", "s3fifo"};

TEST(BlockCacheContract, AllAreRegistered) {
  for (const std::string& name : kAll) EXPECT_TRUE(BlockCacheRegistry::table_view().contains(name)) << name;
}

TEST(BlockCacheContract, UnknownParameterIsRefused) {
  EXPECT_THROW(make_block_cache("lru", "{size: 3}"), InputError);
  EXPECT_THROW(make_block_cache("s3fifo", "{small_frac: 1.5}"), InputError);
}

TEST(BlockCacheContract, OneBlock) {
  for (const std::string& name : kAll) EXPECT_EQ(BlockCacheHost(name, 1).run("aabba"), "-.a.b") << name;
}

// With all blocks but one referenced the victim is that one, whatever the policy thinks of it.
TEST(BlockCacheContract, TheOnlyCandidateIsTheVictim) {
  for (const std::string& name : kAll) {
    BlockCacheHost host(name, 4);
    for (const char key : {'a', 'b', 'c', 'd'}) host.pin(key);
    host.unpin('c');
    EXPECT_EQ(host.pin('x'), 'c') << name;
    host.unpin('a');
    EXPECT_EQ(host.pin('y'), 'a') << name;
  }
}

// Random references, also several to one block and hits on referenced ones. The host checks every victim; in the end all
// blocks come out exactly once.
RC_GTEST_PROP(BlockCacheContract, VictimsAreCandidates, ()) {
  const std::string name = *rc::gen::elementOf(kAll);
  const auto num_blocks = *rc::gen::inRange<std::uint32_t>(1, 8);
  const auto steps = *rc::gen::container<std::vector<std::pair<char, bool>>>(
      300, rc::gen::pair(rc::gen::inRange<char>('a', 'n'), rc::gen::arbitrary<bool>()));
  BlockCacheHost host(name, num_blocks);
  std::map<char, int> pins;
  for (const auto& [key, wants_pin] : steps) {
    if (wants_pin && (host.num_referenced() < num_blocks || pins[key] > 0)) {
      host.pin(key);
      ++pins[key];
    } else if (!wants_pin && pins[key] > 0) {
      host.unpin(key);
      --pins[key];
    }
  }
  for (auto& [key, count] : pins)
    for (; count > 0; --count) host.unpin(key);
  for (std::uint32_t i = 0; i < num_blocks; ++i) host.pin(static_cast<char>('A' + i));
  RC_ASSERT(host.num_referenced() == num_blocks);
  RC_ASSERT(!::testing::Test::HasFailure());
}

}  // namespace
}  // namespace kvlab
