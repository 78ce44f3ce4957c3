#include "kernels/pack_tokens/pack_tokens.h"

#include <gtest/gtest.h>

#include "policies/kv/kv_store.h"

namespace kvlab {
namespace {

using Floats = std::vector<float>;
using Ints = std::vector<std::int32_t>;

// Two rows of three tokens: keys 10 i + c of head 0, 100 more in head 1, values 1000 more, a word of 7 + i each.
struct TwoRows {
  ModelShape model{1, 2, 2, 2, 4};
  KvStore store{model, 1, 1, true};

  TwoRows() {
    for (std::int32_t i = 0; i < 3; ++i) {
      const auto x = static_cast<float>(10 * i);
      const Floats k{x, x + 1, x + 100, x + 101}, v{x + 1000, x + 1001, x + 1100, x + 1101};
      store.append(0, k.data(), v.data(), 1, i);
    }
    const KvRows kv = store.rows();
    for (std::int32_t r = 0; r < 2; ++r)
      for (std::int32_t i = 0; i < 3; ++i) kv.word(0, r, i) = static_cast<std::uint32_t>(7 + i);
  }
};

TEST(PackTokens, ListedVectorsOneAfterAnother) {
  TwoRows rows;
  const std::int64_t first[] = {0, 2, 3};
  const Ints index{0, 2, 1};
  Floats k(6), v(6);
  std::vector<std::uint32_t> marks(6);
  run_cpu(PackTokens{rows.store.rows(), first, index.data(), k.data(), v.data(), marks.data()});
  EXPECT_EQ(k, (Floats{0, 1, 20, 21, 110, 111}));
  EXPECT_EQ(v, (Floats{1000, 1001, 1020, 1021, 1110, 1111}));
  EXPECT_EQ(marks, (std::vector<std::uint32_t>{0, 2, 1, 7, 9, 8}));  // positions, then words
}

TEST(PackTokens, BackIntoRowsAndNowhereElse) {
  TwoRows rows, untouched;
  const std::int64_t first[] = {0, 1, 3};
  Floats v{1, 2, 3, 4, 5, 6};
  PackTokens op{rows.store.rows(), first};  // the first token of one row, two of the other
  op.v = v.data();
  op.unpacks = true;
  run_cpu(op);
  const KvRows kv = rows.store.rows(), before = untouched.store.rows();
  EXPECT_EQ(Floats(kv.value(0, 0), kv.value(0, 0) + 2), (Floats{1, 2}));
  EXPECT_EQ(Floats(kv.value(0, 1), kv.value(0, 1) + 2), (Floats{1010, 1011}));
  EXPECT_EQ(Floats(kv.value(1, 1), kv.value(1, 1) + 2), (Floats{5, 6}));
  for (std::int32_t r = 0; r < 2; ++r)
    for (std::int32_t i = 0; i < 3; ++i) EXPECT_EQ(*kv.key(r, i), *before.key(r, i));
}

}  // namespace
}  // namespace kvlab
