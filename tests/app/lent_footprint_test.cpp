#include <gtest/gtest.h>

#include "app/runs/plan/kv_memory.h"
#include "sim/kv_cost/recipe_footprint.h"
#include "tests/recipes_in.h"

namespace kvlab {
namespace {

TEST(LentFootprint, IsMadeOnceForRunsThatFollowEachOther) {
  int made = 0;
  const auto lend = lending([&made]() -> std::unique_ptr<Footprint> {
    ++made;
    return std::make_unique<KeepAll>();
  });
  for (int run = 0; run < 3; ++run) {
    const auto one = lend();
    EXPECT_TRUE(one->keeps_everything());
  }
  EXPECT_EQ(made, 1);
  const auto first = lend(), second = lend();  // two replicas at a time
  EXPECT_EQ(made, 2);
}

TEST(LentFootprint, SaysWhatAFreshOneSays) {
  const Recipe recipe = recipe_of("{recipe: d2o, budget_frac: 0.3}");
  const auto make = [&recipe] { return std::make_unique<RecipeFootprint>(recipe, ModelShape{12, 4, 2, 32, 64}, 16); };
  const auto lend = lending(make);
  for (const std::int32_t prompt : {40, 75, 40, 130}) {
    const auto lent = lend();
    const std::unique_ptr<Footprint> fresh = make();
    SeqState a{0, prompt}, b = a;
    for (std::int32_t next = prompt, i = 0; i < 5; ++i, next = 1) {
      a = a.taking(next), b = b.taking(next);
      const FootprintStep one = lent->step(a), other = fresh->step(b);
      EXPECT_EQ(one.kept_pages, other.kept_pages);
      EXPECT_EQ(one.peak_pages, other.peak_pages);
      PolicyWork work, expected;
      lent->charge({&a, 1}, work), fresh->charge({&b, 1}, expected);
      ASSERT_EQ(work.ops.size(), expected.ops.size());
      for (std::size_t k = 0; k < work.ops.size(); ++k) EXPECT_EQ(work.ops[k].bytes, expected.ops[k].bytes);
      a = one.after(a), b = other.after(b);
    }
  }
}

}  // namespace
}  // namespace kvlab
