// Swaps by groups of blocks, and copies that CPU memory keeps of requests that came back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "serving/copies_out.h"
#include "serving/copy_calls.h"
#include "serving/swap_setup.h"
#include "tests/error_of.h"
#include "tests/policies/replica_driver.h"

namespace kvlab {
namespace {

TEST(HostCopies, Scripts) {
  const Scripts run{"vllm_v1"};
  // 12 tokens in blocks 0, 1 and 2 go out, and come back into blocks 3 to 6.
  for (const auto& [most, calls] : {std::pair{1, "3"}, {2, "2"}, {60, "1"}})
    run("CallsFollowNeighbouringBlocks", "{}", {.num_blocks = 20, .host_blocks = 10, .swap_group_blocks = most},
        {"+ 12,20", "0:12", "swap 0", std::string("; copies_out 1; copies_in 1; out 3/") + calls + "; in 3/" + calls});
  // In 4 blocks the engine's free list hands out 3, 2, 1, 0 to the request that comes back; block_groups keeps runs together.
  for (const auto& [cache, in] : {std::pair{"lru", "3/3"}, {"block_groups", "3/1"}})
    run("TheFreeListBreaksRunsUp", "{}", {.num_blocks = 4, .host_blocks = 10, .block_cache = cache, .swap_group_blocks = 60},
        {"+ 12,4", "0:12", "swap 0", std::string("; out 3/1; in ") + in});
  // 3 full blocks go out at 12 tokens. At 17 tokens the fourth is full and the fifth has one: 2 are new. At 18 only the fifth has changed.
  run("OnlyNewBlocksAreCopiedAgain", "{}", {.num_blocks = 20, .host_blocks = 10, .keeps_host_copies = true},
      {"+ 12,20", "0:12", "swap 0", "; out 3/3", "copied in; host_used 3", "0:1 *5", "swap 0", "; out 2/2", "copied in; host_used 5", "0:1",
       "swap 0", "; out 1/1; copies_out 3"});
  run("WithoutCopiesAllBlocksAre", "{}", {.num_blocks = 20, .host_blocks = 10},
      {"+ 12,20", "0:12", "swap 0", "; out 3/3", "copied in; host_used 0", "0:1 *5", "swap 0", "; out 5/5", "copied in; host_used 0", "0:1",
       "swap 0", "; out 5/5; copies_out 3"});
  // Room for 5 blocks. Request 1 needs 3 of them, so the copy of request 0 is dropped; then request 0 itself finds no room.
  run("AreGivenUpUnderPressure", "{}", {.num_blocks = 20, .host_blocks = 5, .keeps_host_copies = true},
      {"+ 12,20", "0:12", "swap 0", "", "copied in", "0:1", "+ 12,20", "0:1 1:12; host_used 3", "swap 1; host_used 3",
       "swap 0; host_used 3; swaps 2; fallbacks 1"});
  // With room the copy of request 0 counts towards what it needs.
  run("ACopyIsRoomForItself", "{}", {.num_blocks = 20, .host_blocks = 4, .keeps_host_copies = true},
      {"+ 12,20", "0:12", "swap 0", "", "copied in", "0:1", "swap 0", "", "copied in; swaps 2; host_used 4"});
  // Request 0 is done, and request 1 is computed again.
  run("LeaveWithTheRequest", "{}", {.num_blocks = 20, .host_blocks = 10, .keeps_host_copies = true},
      {"+ 12,3 12,30", "0:12 1:12", "swap 0", "?", "copied in; host_used 3", "? *3; left 1; host_used 0", "swap 0", "?", "copied in", "?",
       "recompute 0; host_used 0"});
}

Memory turns_memory(std::int64_t host_blocks = 20, bool keeps = true) {
  Memory memory{.num_blocks = 20, .host_blocks = host_blocks, .keeps_host_copies = true};
  memory.swap.keeps_turns = keeps;
  return memory;
}

// Lines after a first turn of session 7, of 12 tokens, 3 blocks, that was swapped once and is over.
std::vector<std::string> after_a_turn(const std::vector<std::string>& lines, const std::string& content = ":1:2:3") {
  std::vector<std::string> all{"+ 12,3s7" + content, "0:12", "swap 0", "", "copied in", "? *3; left 1"};
  all.insert(all.end(), lines.begin(), lines.end());
  return all;
}

TEST(TurnCopies, Scripts) {
  const Scripts run{"vllm_v1"};
  // The copy is given up when others need its room. The second turn copies the rest, and its own copy stays; the third turn has nothing
  // that the second had not.
  run("TheNextTurnCopiesTheRest", "{}", turns_memory(),
      after_a_turn({"copied in; host_used 3; host_free 20", "+ 20,3s7:1:2:3:4:5", "?", "swap 0", "?; out 2/2; host_used 5", "copied in",
                    "? *3; left 2; host_used 5", "+ 20,3s7:1:2:3:4:5", "?", "swap 0", "?; copies_out 2"}));
  // The first block is the same; a turn of another session has nothing to go on from.
  run("OtherContentIsCopiedAnew", "{}", turns_memory(), after_a_turn({"+ 20,3s7:1:12:13:14:15", "?", "swap 0", "?; out 4/4; host_used 5"}));
  run("OtherSessionsStay", "{}", turns_memory(), after_a_turn({"+ 20,3s8:1:2:3:4:5", "?", "swap 0", "?; out 5/5; host_used 8"}));
  // 7 blocks do not hold 3 and 5.
  run("AreGivenUpUnderPressure", "{}", turns_memory(7),
      after_a_turn({"+ 20,3s8:21:22:23:24:25", "?", "swap 0", "?; out 5/5; host_used 5", "copied in", "? *3; left 2", "+ 20,3s7:1:2:3:4:5",
                    "?", "swap 0", "?; out 5/5"}));
  // Without hashes the next turn cannot be matched with this one; without swap_keeps_turns no copy is kept.
  run("NeedNames", "{}", turns_memory(), after_a_turn({"copied in; host_used 0"}, ""));
  run("NeedTheSetting", "{}", turns_memory(20, false), after_a_turn({"copied in; host_used 0"}));
  // A prompt is swapped out after its first chunks of 4 tokens, and the next one after its first: the copy has all of these.
  run("CountUpToTheComputedTokens", "{budget_tokens: 4}", turns_memory(),
      {"+ 12,3s7:1:2:3", "0:4 *3", "swap 0", "", "copied in", "? *3; left 1", "+ 20,3s7:1:2:3:4:5", "1:4", "swap 0",
       "?; copies_out 1; host_used 1"});
}

TEST(TurnCopies, ARequestWithoutASessionIsRefused) {
  ReplicaDriver d("vllm_v1", "{}", turns_memory());
  const std::vector<std::uint64_t> content{1, 2, 3};
  EXPECT_THAT(error_of([&] { d.arrive(12, 3, content); }),
              ::testing::HasSubstr("request 0 of the trace (counted from 0) has no 'session'"));
}

// The choice between waiting for a copy in and continuing without its request, and the blocks of copies that run during steps.

constexpr Span kStep{1000};

TEST(CopyIn, IsWaitedForWhereThatCostsFewerTokens) {
  // A request alone waits at no cost: otherwise the GPU would be idle.
  EXPECT_TRUE(waits_for_copy_in(0, kStep, Span{0}, Span{7500}));
  // A copy of a tenth of a step: if the step continues its request misses one token, waiting costs a tenth of a token per request.
  EXPECT_TRUE(waits_for_copy_in(9, kStep, Span{0}, Span{100}));
  EXPECT_FALSE(waits_for_copy_in(10, kStep, Span{0}, Span{100}));
  // 2.5 steps: three tokens are missed.
  EXPECT_FALSE(waits_for_copy_in(1, kStep, Span{0}, Span{2500}));
  // The step waits for 2,400 anyway.
  EXPECT_TRUE(waits_for_copy_in(29, kStep, Span{2400}, Span{2500}));
  EXPECT_FALSE(waits_for_copy_in(30, kStep, Span{2400}, Span{2500}));
  EXPECT_TRUE(waits_for_copy_in(1'000'000, kStep, Span{2600}, Span{2500}));
  EXPECT_FALSE(waits_for_copy_in(0, Span{0}, Span{0}, Span{100})) << "nothing is known of the step";
}

TEST(CopyIn, LongTimesDoNotOverflow) {
  EXPECT_FALSE(waits_for_copy_in(std::int64_t{1} << 40, Span{1}, Span{0}, Span{std::int64_t{1} << 62}));
}

TEST(CopiesOut, BlocksAreBusyUntilTheirCopyEnds) {
  CopiesOut copies;
  const std::array first{BlockId{3}, BlockId{5}};
  const std::array second{BlockId{5}};
  const std::array others{BlockId{0}, BlockId{4}, BlockId{900}};
  copies.begin(RequestId{1}, first, Picoseconds{100});
  copies.begin(RequestId{7}, second, Picoseconds{250});
  EXPECT_EQ(copies.free_at(std::array{BlockId{3}}), Picoseconds{100});
  EXPECT_EQ(std::tuple(copies.free_at(first), copies.free_at(others), copies.end_of(RequestId{1}), copies.end_of(RequestId{1000})),
            std::tuple(Picoseconds{250}, Picoseconds{}, Picoseconds{100}, Picoseconds{}));
  EXPECT_EQ(copies.last(), Picoseconds{250});
  copies.forget(RequestId{1});
  EXPECT_EQ(copies.end_of(RequestId{1}), Picoseconds{});
  EXPECT_EQ(copies.free_at(std::array{BlockId{3}}), Picoseconds{100}) << "the copy still reads it";
}

std::int64_t calls(const std::vector<std::uint32_t>& ids, std::int32_t most) {
  std::vector<BlockId> blocks;
  for (const std::uint32_t id : ids) blocks.push_back(BlockId{id});
  return copy_calls(blocks, most);
}

TEST(CopyCalls, OneForEachRunOfRisingNeighbours) {
  EXPECT_EQ(calls({}, 60), 0);
  EXPECT_EQ(calls({7}, 60), 1);
  EXPECT_EQ(calls({3, 4, 5, 6}, 60), 1);
  EXPECT_EQ(calls({3, 4, 9, 10, 11, 2}, 60), 3);
  EXPECT_EQ(calls({6, 5, 4, 3}, 60), 4) << "CPU memory has them the other way round";
  EXPECT_EQ(calls({3, 3, 4}, 60), 2);
}

TEST(CopyCalls, AtMostSoManyBlocksEach) {
  EXPECT_EQ(calls({0, 1, 2, 3, 4}, 1), 5);
  EXPECT_EQ(calls({0, 1, 2, 3, 4}, 2), 3);
  EXPECT_EQ(calls({0, 1, 2, 3, 4}, 4), 2);
  EXPECT_EQ(calls({0, 1, 2, 3, 4}, 5), 1);
}

}  // namespace
}  // namespace kvlab
