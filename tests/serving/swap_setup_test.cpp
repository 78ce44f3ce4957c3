// The choice between waiting for a copy in and continuing without its request, and the blocks of copies that run during steps.
#include "serving/swap_setup.h"

#include <gtest/gtest.h>

#include <array>

#include "serving/copies_out.h"

namespace kvlab {
namespace {

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

}  // namespace
}  // namespace kvlab
