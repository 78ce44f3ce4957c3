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

// Swaps the running request of that place out; the plan that follows begins to bring it back.
std::string swap_out(ReplicaDriver& d, std::size_t place = 0) {
  d.state().preempt(d.state().running()[place], Preemption::kSwap, QueueEnd::kFront);
  return d.step();
}

void swap_out_and_in(ReplicaDriver& d) {
  swap_out(d);
  d.finish_copies();
  d.state().check();
}

// 12 tokens in blocks 0, 1 and 2 go out, and come back into blocks 3 to 6.
TEST(SwapGroups, CallsFollowNeighbouringBlocks) {
  for (const auto& [most, calls] : {std::pair{1, 3}, {2, 2}, {60, 1}}) {
    ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 20, .host_blocks = 10, .swap_group_blocks = most});
    d.arrive(12, 20);
    EXPECT_EQ(d.step(), "0:12");
    EXPECT_EQ(swap_out(d), "");
    ASSERT_EQ(d.copies_out().size(), 1U);
    ASSERT_EQ(d.copies_in().size(), 1U);
    for (const auto& copy : {d.copies_out()[0], d.copies_in()[0]})
      EXPECT_EQ(std::tuple(copy.blocks, copy.calls), std::tuple(3, calls)) << most;
  }
}

// In 4 blocks the engine's free list hands out 3, 2, 1, 0 to the request that comes back; block_groups keeps runs together.
TEST(SwapGroups, TheFreeListBreaksRunsUp) {
  for (const auto& [cache, calls] : {std::pair{"lru", 3}, {"block_groups", 1}}) {
    ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 4, .host_blocks = 10, .block_cache = cache, .swap_group_blocks = 60});
    d.arrive(12, 4);
    EXPECT_EQ(d.step(), "0:12");
    EXPECT_EQ(swap_out(d), "");
    EXPECT_EQ(d.copies_out()[0].calls, 1) << cache;
    EXPECT_EQ(d.copies_in()[0].calls, calls) << cache;
  }
}

// 3 full blocks go out at 12 tokens. At 17 tokens the fourth is full and the fifth has one: 2 are new. At 18 only the fifth has changed.
TEST(HostCopies, OnlyNewBlocksAreCopiedAgain) {
  for (const bool keeps : {false, true}) {
    ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 20, .host_blocks = 10, .keeps_host_copies = keeps});
    d.arrive(12, 20);
    d.step();
    swap_out_and_in(d);
    EXPECT_EQ(d.state().memory().host_used(), keeps ? 3 : 0);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(d.step(), "0:1");
    swap_out_and_in(d);
    EXPECT_EQ(d.state().memory().host_used(), keeps ? 5 : 0);
    EXPECT_EQ(d.step(), "0:1");
    swap_out_and_in(d);
    const auto& out = d.copies_out();
    ASSERT_EQ(out.size(), 3U);
    EXPECT_EQ(std::tuple(out[0].blocks, out[1].blocks, out[1].calls, out[2].blocks),
              keeps ? std::tuple(3, 2, 2, 1) : std::tuple(3, 5, 5, 5));
  }
}

// Room for 5 blocks. Request 1 needs 3 of them, so the copy of request 0 is dropped; then request 0 itself finds no room.
TEST(HostCopies, AreGivenUpUnderPressure) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 20, .host_blocks = 5, .keeps_host_copies = true});
  d.arrive(12, 20);
  d.step();
  swap_out_and_in(d);
  EXPECT_EQ(d.step(), "0:1");
  d.arrive(12, 20);
  EXPECT_EQ(d.step(), "0:1 1:12");
  EXPECT_EQ(d.state().memory().host_used(), 3);
  d.state().preempt(d.state().running()[1], Preemption::kSwap, QueueEnd::kFront);
  EXPECT_EQ(d.state().memory().host_used(), 3);
  d.state().preempt(d.state().running()[0], Preemption::kSwap, QueueEnd::kFront);
  EXPECT_EQ(d.state().memory().host_used(), 3);
  EXPECT_EQ(std::tuple(d.state().counters().swaps, d.state().counters().recompute_fallbacks), std::tuple(2U, 1U));
  d.state().check();
}

// With room the copy of request 0 counts towards what it needs.
TEST(HostCopies, ACopyIsRoomForItself) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 20, .host_blocks = 4, .keeps_host_copies = true});
  d.arrive(12, 20);
  d.step();
  swap_out_and_in(d);
  EXPECT_EQ(d.step(), "0:1");
  swap_out_and_in(d);
  EXPECT_EQ(d.state().counters().swaps, 2U);
  EXPECT_EQ(d.state().memory().host_used(), 4);
}

TEST(HostCopies, LeaveWithTheRequest) {
  ReplicaDriver d("vllm_v1", "{}", Memory{.num_blocks = 20, .host_blocks = 10, .keeps_host_copies = true});
  d.arrive(12, 3);
  d.arrive(12, 30);
  d.step();
  swap_out_and_in(d);
  EXPECT_EQ(d.state().memory().host_used(), 3);
  while (d.left().empty()) ASSERT_NE(d.step(), "");
  EXPECT_EQ(d.state().memory().host_used(), 0);
  swap_out(d);
  d.finish_copies();
  d.step();
  d.state().preempt(d.state().running()[0], Preemption::kRecompute, QueueEnd::kFront);
  EXPECT_EQ(d.state().memory().host_used(), 0) << "it is computed again";
}

Memory turns_memory(std::int64_t host_blocks = 20) {
  Memory memory{.num_blocks = 20, .host_blocks = host_blocks, .keeps_host_copies = true};
  memory.swap.keeps_turns = true;
  return memory;
}

void run_to_end(ReplicaDriver& d) {
  const std::size_t before = d.left().size();
  while (d.left().size() == before) ASSERT_NE(d.step(), "");
}

// A turn of 12 tokens, 3 blocks, that was swapped once and is over.
void serve_first_turn(ReplicaDriver& d, std::int64_t session, const std::vector<std::uint64_t>& content) {
  d.in_session(session).arrive(12, 3, content);
  d.step();
  swap_out_and_in(d);
  run_to_end(d);
}

// The blocks that a turn of 20 tokens, 5 blocks, copies out when it is swapped.
std::int64_t blocks_out(ReplicaDriver& d, std::int64_t session, const std::vector<std::uint64_t>& content) {
  d.in_session(session).arrive(20, 3, content);
  d.step();
  swap_out(d);
  return d.copies_out().back().blocks;
}

TEST(TurnCopies, TheNextTurnCopiesTheRest) {
  ReplicaDriver d("vllm_v1", "{}", turns_memory());
  serve_first_turn(d, 7, {1, 2, 3});
  EXPECT_EQ(d.state().memory().host_used(), 3);
  EXPECT_EQ(d.state().memory().free_host_blocks(), 20) << "given up when others need it";
  EXPECT_EQ(blocks_out(d, 7, {1, 2, 3, 4, 5}), 2);
  EXPECT_EQ(d.state().memory().host_used(), 5);
  d.finish_copies();
  run_to_end(d);
  EXPECT_EQ(d.state().memory().host_used(), 5) << "now the copy of the second turn";
  const std::size_t before = d.copies_out().size();
  d.in_session(7).arrive(20, 3, {1, 2, 3, 4, 5});
  d.step();
  swap_out(d);
  EXPECT_EQ(d.copies_out().size(), before) << "the third turn has nothing that the second had not";
}

// The first block is the same; a turn of another session has nothing to go on from.
TEST(TurnCopies, OtherContentIsCopiedAnewAndOtherSessionsStay) {
  const std::tuple<std::int64_t, std::vector<std::uint64_t>, int, int> cases[] = {{7, {1, 12, 13, 14, 15}, 4, 5},
                                                                                  {8, {1, 2, 3, 4, 5}, 5, 3 + 5}};
  for (const auto& [session, content, out, used] : cases) {
    ReplicaDriver d("vllm_v1", "{}", turns_memory());
    serve_first_turn(d, 7, {1, 2, 3});
    EXPECT_EQ(blocks_out(d, session, content), out);
    EXPECT_EQ(d.state().memory().host_used(), used);
  }
}

TEST(TurnCopies, AreGivenUpUnderPressure) {
  ReplicaDriver d("vllm_v1", "{}", turns_memory(7));
  serve_first_turn(d, 7, {1, 2, 3});
  EXPECT_EQ(blocks_out(d, 8, {21, 22, 23, 24, 25}), 5);
  EXPECT_EQ(d.state().memory().host_used(), 5) << "7 blocks do not hold 3 and 5";
  d.finish_copies();
  run_to_end(d);
  EXPECT_EQ(blocks_out(d, 7, {1, 2, 3, 4, 5}), 5);
}

// Without hashes the next turn cannot be matched with this one; without swap_keeps_turns no copy is kept.
TEST(TurnCopies, NeedNamesAndTheSetting) {
  for (const bool keeps : {true, false}) {
    Memory memory = turns_memory();
    memory.swap.keeps_turns = keeps;
    ReplicaDriver d("vllm_v1", "{}", memory);
    serve_first_turn(d, 7, keeps ? std::vector<std::uint64_t>{} : std::vector<std::uint64_t>{1, 2, 3});
    EXPECT_EQ(d.state().memory().host_used(), 0);
  }
}

// A prompt is swapped out after its first chunk of 4 tokens: the copy has all of these.
TEST(TurnCopies, CountUpToTheComputedTokens) {
  ReplicaDriver d("vllm_v1", "{budget_tokens: 4}", turns_memory());
  d.in_session(7).arrive(12, 3, {1, 2, 3});
  for (int i = 0; i < 3; ++i) d.step();
  swap_out_and_in(d);
  run_to_end(d);
  const std::size_t before = d.copies_out().size();
  d.in_session(7).arrive(20, 3, {1, 2, 3, 4, 5});
  EXPECT_EQ(d.step(), "1:4");
  swap_out(d);
  EXPECT_EQ(d.copies_out().size(), before) << "no block is copied";
  EXPECT_EQ(d.state().memory().host_used(), 1);
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
