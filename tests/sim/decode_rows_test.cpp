// Decode rows that are alike are counted at once.
#include <gtest/gtest.h>

#include "base/random.h"
#include "sim/cost/cost_model.h"

namespace kvlab {
namespace {

auto fields_of(const StepShape& s) {
  return std::tuple(s.decodes, s.decode_kv_tokens, s.decode_kv_max, s.decode_kv_min, s.decode_kv_squares, s.decode_full, s.decode_open_max,
                    s.in_window.kv_tokens, s.in_window.full, s.in_window.open_max);
}

TEST(DecodeRows, RowsAlikeAreThoseOneByOne) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const auto draw = [&](std::uint64_t step, std::uint64_t n) { return Draw{seed, Purpose::kTest, 0, step, 0}.below(n); };
    AttentionWindows windows;
    if (const auto kind = draw(0, 3); kind > 0) (kind == 1 ? windows.every_layer : windows.some_layers) = 100;
    for (std::uint64_t group = 0; group < 3; ++group) {
      const auto rows = static_cast<std::int32_t>(draw(1 + 2 * group, 5)), kv = static_cast<std::int32_t>(draw(2 + 2 * group, 200));
      StepShape single;
      for (std::int32_t i = 0; i < rows; ++i) add_decode_row(single, kv, windows);
      ASSERT_EQ(fields_of(equal_decode_rows(rows, kv, windows)), fields_of(single)) << "seed " << seed;
    }
  }
}

// As many rows as a loop would take seconds for.
TEST(DecodeRows, ManyRowsCostNoMoreThanOne) {
  const StepShape shape = equal_decode_rows(1 << 30, 3, {});
  EXPECT_EQ(std::tuple(shape.decodes, shape.decode_kv_tokens, shape.decode_kv_squares),
            std::tuple(1 << 30, std::int64_t{3} << 30, std::int64_t{9} << 30));
}

}  // namespace
}  // namespace kvlab
