#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/half.h"
#include "kernels/allocate/count_scores_op.h"
#include "kernels/score/token_scores_op.h"
#include "kernels/storage/outliers_op.h"
#include "kernels/storage/stored/stored_code.h"
#include "kernels/storage/vector_code/vector_code.h"
#include "policies/kv/format/delta_code_op.h"
#include "policies/kv/format/exponent_code/exponent_code.h"
#include "policies/kv/format/probe_sums.h"
#include "tests/kernels/paged_rows.h"

namespace kvlab {
namespace {

struct Listed : ListedRows {
  Listed(std::int32_t heads, std::int32_t head_dim, const std::vector<float>& keys) : ListedRows(heads, head_dim, keys, keys) {}
};

std::vector<float> normals(std::int64_t n) { return drawn_normals(n, 17, 1); }

TEST(Outliers, HandComputedPerToken) {
  Listed rows(1, 5, {1, 9, 2, -8, 1, 4, 4, 4, 4, 4});
  Outliers outliers{.tokens = rows.listed, .share = 0.4, .place = {}};  // one at each end
  ASSERT_EQ(outlier_numbers(outliers), 4);
  std::vector<std::uint16_t> value(4), place(4);
  outliers.value = value.data(), outliers.place.narrow = place.data();
  run_cpu(outliers);
  EXPECT_EQ(place, (std::vector<std::uint16_t>{1, 3, 0, 4}));
  const float* const x = rows.listed.kv.key(0, 0);
  EXPECT_EQ(std::vector<float>(x, x + 5), (std::vector<float>{1, 1, 2, 1, 1}));  // the mean of the first token is 1
  run_cpu(unpacking(outliers));
  EXPECT_EQ(std::vector<float>(x, x + 10), rows.k);
}

TEST(Outliers, PerChannelTakesAcrossTokens) {
  Listed rows(2, 3, normals(10 * 6));
  Outliers outliers{.tokens = rows.listed, .per_channel = true, .share = 0.2, .place = {}};
  std::vector<std::uint16_t> value(static_cast<std::size_t>(outlier_numbers(outliers)));
  std::vector<std::int32_t> place(value.size());
  ASSERT_EQ(value.size(), 2U * 3 * 2);
  outliers.value = value.data(), outliers.place.wide = place.data();
  run_cpu(outliers);
  for (std::int32_t r = 0; r < 2; ++r)
    for (std::int32_t c = 0; c < 3; ++c) {
      std::int32_t largest = 0, smallest = 0;
      for (std::int32_t i = 1; i < 10; ++i) {
        const auto x = [&](std::int32_t token) { return rows.k[static_cast<std::size_t>(token * 6 + r * 3 + c)]; };
        if (x(i) > x(largest)) largest = i;
        if (x(i) < x(smallest)) smallest = i;
      }
      EXPECT_EQ(place[static_cast<std::size_t>((r * 3 + c) * 2)], largest);
      EXPECT_EQ(place[static_cast<std::size_t>((r * 3 + c) * 2 + 1)], smallest);
    }
  EXPECT_EQ(outlier_bytes(128, 1000, 0.02), 128 * 20 * 4);
  EXPECT_FALSE(has_wide_places(65535));
  EXPECT_TRUE(has_wide_places(65536));
  EXPECT_EQ(outlier_bytes(128, 100000, 0.02), 128 * 2000 * 6);
  for (const std::int64_t n : {2, 20, 99, 199}) EXPECT_EQ(outliers_of(0.02, n), 2) << n;  // at least one at either end
  EXPECT_EQ(outliers_of(0.02, 200), 4);
  EXPECT_EQ(outliers_of(0.02, 1), 0);
  EXPECT_EQ(outliers_of(0, 99), 0);
}

TEST(DeltaCode, ErrorIsHalfAStepAndTheSizeIsBelowTheBound) {
  for (const std::int32_t tokens : {1, 9, 10, 11, 200}) {
    Listed rows(2, 16, normals(tokens * 32));
    std::int32_t bytes[] = {5, 5};
    run_cpu(DeltaCode{rows.listed, 10, 16, bytes});
    for (std::int32_t r = 0; r < 2; ++r) {
      EXPECT_LE(bytes[r], 5 + delta_code_bound(tokens, 16, 10, 16));
      EXPECT_GE(bytes[r], 5 + 2 * tokens + (tokens + 9) / 10 * 16);
      for (std::int32_t i = 0; i < tokens; ++i) {
        const float* const anchor = rows.listed.kv.key(r, i / 10 * 10);
        float largest = 0;
        for (std::int32_t c = 0; c < 16; ++c) {
          const float x = rows.k[static_cast<std::size_t>((i * 2 + r) * 16 + c)];
          largest = std::max(largest, std::fabs(i % 10 == 0 ? x : x - anchor[c]));
        }
        for (std::int32_t c = 0; c < 16; ++c)
          EXPECT_NEAR(rows.listed.kv.key(r, i)[c], rows.k[static_cast<std::size_t>((i * 2 + r) * 16 + c)],
                      largest / (i % 10 == 0 ? 127 : 7) * 0.505F + 1e-6F);
      }
    }
  }
}

TEST(DeltaCode, EqualTokensCostAnchorsAndScalesAlone) {
  std::vector<float> k;
  for (std::int32_t i = 0; i < 20; ++i)
    for (std::int32_t c = 0; c < 8; ++c) k.push_back(static_cast<float>(c) - 3);
  Listed rows(1, 8, k);
  std::int32_t bytes = 0;
  run_cpu(DeltaCode{rows.listed, 10, 16, &bytes});
  EXPECT_LE(bytes, 20 * 2 + 2 * 8 + 20);  // differences hold the anchors' rounding at most
}

// Four symbols at 1/2, 1/4, 1/8, 1/8: lengths 1, 2, 3, 3.
TEST(ExponentCode, HuffmanLengthsByHand) {
  std::vector<std::int64_t> count(256, 0);
  count[7] = 8, count[9] = 4, count[1] = 2, count[200] = 2;
  std::vector<std::int32_t> length(256, -1);
  huffman_lengths(count.data(), length.data());
  std::vector<std::int32_t> expected(256, 0);
  expected[7] = 1, expected[9] = 2, expected[1] = expected[200] = 3;
  EXPECT_EQ(length, expected);
  std::fill(count.begin(), count.end(), 0);
  huffman_lengths(count.data(), length.data());
  EXPECT_EQ(length, std::vector<std::int32_t>(256, 0));
  count[3] = 5;
  huffman_lengths(count.data(), length.data());
  EXPECT_EQ(length[3], 1);
}

TEST(ExponentCode, SizeByHand) {
  // 65 tokens of 4 numbers with exponents of 1, 1, 2 and 4: one bit for half of them, two for the others.
  std::vector<float> k;
  for (std::int32_t i = 0; i < 65; ++i) k.insert(k.end(), {1.0F, -1.5F, 2.0F, 4.5F});
  Listed rows(1, 4, k);
  std::int32_t bytes = 0;
  run_cpu(ExponentCode{rows.listed, &bytes});
  EXPECT_EQ(bytes, kExponentTable + (64 * (32 + 6) / 8 + 4) + (5 + 4));
}

TEST(ExponentCode, BetweenEntropyAndEntropyPlusOneBit) {
  Listed rows(1, 64, normals(64 * 64));
  std::vector<double> count(256, 0);
  for (const float x : rows.k) count[float_to_bfloat16(x) >> 7U & 0xffU] += 1;
  double entropy = 0;
  for (const double n : count)
    if (n > 0) entropy -= n * std::log2(n / (64 * 64));
  std::int32_t bytes = 0;
  run_cpu(ExponentCode{rows.listed, &bytes});
  const double raw = 64 * 64 + kExponentTable + 4;
  EXPECT_GE(bytes, raw + entropy / 8);
  EXPECT_LE(bytes, raw + (entropy + 64 * 64) / 8 + 1);
}

// Codes of two sequences' rows, among them numbers with every kind of exponent, come back bit for bit in the bytes that are counted.
TEST(ExponentCode, ComesBackBitForBit) {
  std::vector<float> k = normals(150 * 2 * 24);
  const float odd[] = {0.0F, -0.0F, 1e-40F, -3e38F, INFINITY, -INFINITY, 1e-20F, 65536.0F};
  for (std::size_t i = 0; i < k.size(); i += 97) k[i] = odd[i / 97 % 8];
  Listed rows(2, 24, k);
  std::vector<std::uint8_t> packed(static_cast<std::size_t>(most_exponent_bytes(rows.listed))), lengths(kExponentTable);
  std::int32_t bytes[2] = {0, 0};
  std::int64_t begin[2], end[2];
  run_cpu(ExponentCode{rows.listed, bytes, packed.data(), lengths.data(), begin, end});
  EXPECT_EQ(end[0] - begin[0] + kExponentTable, bytes[0]);
  EXPECT_EQ(end[1] - begin[1], bytes[1]);
  EXPECT_LT(bytes[0] + bytes[1], 2 * 150 * 2 * 24 * 3 / 4);
  std::fill_n(rows.listed.kv.k, rows.listed.kv.pool_tokens * 24, 7.0F);
  run_cpu(ExponentCode{rows.listed, nullptr, packed.data(), lengths.data(), begin, end, true});
  for (std::int32_t r = 0; r < 2; ++r)
    for (std::int32_t i = 0; i < 150; ++i)
      for (std::int32_t c = 0; c < 24; ++c)
        ASSERT_EQ(float_to_bfloat16(rows.listed.kv.key(r, i)[c]), float_to_bfloat16(k[static_cast<std::size_t>((i * 2 + r) * 24 + c)]));
}

// One channel and q = 1: scores are the keys, so the weights are (1), (1, 1, 2) / 4 and (1, 1, 2, 1) / 5.
TEST(ProbeSums, HandComputed) {
  const float ln2 = std::log(2.0F);
  Listed rows(1, 1, {0, 0, ln2, 0});
  const float q[] = {1, 1, 1};
  const Queries pieces[] = {{q, 1, 0}, {q + 1, 2, 2}};  // probes at positions 0, 2 and 3
  const std::int64_t first[] = {0, 2};
  const std::int32_t end[] = {4};
  const ProbeSums sums{rows.listed.kv, 0, first, pieces, end};
  run_cpu(sums);
  const float expected[] = {1 + 0.25F + 0.2F, 0.25F + 0.2F, 0.5F + 0.4F, 0.2F};
  for (std::int32_t i = 0; i < 4; ++i) EXPECT_NEAR(std::bit_cast<float>(rows.listed.kv.word(0, 0, i)), expected[i], 1e-6F) << i;
  // The first probe sees 1 token, the others 3 and 4; K is read once.
  EXPECT_EQ(
      call(sums),
      (OpCall{.op = "probe_sums", .rows = 1, .tokens = 4, .outputs = 4, .bytes = 4 * (1 * 2 + 8) + 3 * 2, .flops = 2 * 8 * (1 * 2 + 1)}));
}

TEST(TokenScores, DividesByTheProbesThatSee) {
  Listed rows(1, 2, std::vector<float>(12, 0.0F));
  const KvRows& kv = rows.listed.kv;
  for (std::int32_t i = 0; i < 6; ++i) kv.word(0, 0, i) = std::bit_cast<std::uint32_t>(12.0F);
  const std::int64_t first[] = {0, 2};
  const std::int32_t begin[] = {1, 4}, end[] = {3, 5};  // probes 1, 2, 4
  std::vector<float> scores(6);
  run_cpu(TokenScores{.kv = kv, .kind = TokenScores::Kind::kProbeMean, .scores = scores.data(), .probes = {first, begin, end}});
  EXPECT_EQ(scores, (std::vector<float>{4, 4, 6, 12, 12, 0}));
}

TEST(CountScores, FewestListedTokensThatHoldTheShare) {
  Listed rows(1, 2, std::vector<float>(10, 0.0F));
  const KvRows& kv = rows.listed.kv;
  const float mass[] = {1, 6, 2, 0, 1};
  for (std::int32_t i = 0; i < 5; ++i) kv.word(0, 0, i) = std::bit_cast<std::uint32_t>(mass[i]);
  for (const auto& [share, expected] :
       std::vector<std::pair<double, std::int32_t>>{{0.0, 0}, {0.5, 1}, {0.6, 1}, {0.7, 2}, {0.8, 2}, {0.81, 3}, {1.0, 4}}) {
    std::int32_t count = -1;
    constexpr auto kMass = CountScores::Kind::kListedMass;
    run_cpu(CountScores{1, rows.first.data(), nullptr, kMass, share, &count, 1, nullptr, rows.index.data(), kv});
    EXPECT_EQ(count, expected) << share;
  }
}

// Stored codes: the numbers of rows are kept, appended, moved and decoded in parts, whatever the operation.

// An operation with every kind of array: vector i of row r becomes bytes[..] * scale of the row + shift of the sequence, and the last
// channel the sum of the row's sized numbers.
struct EveryArray {
  ListedTokens tokens;
  const std::uint8_t* code = nullptr;    // [total(), head_dim]
  const float* scale = nullptr;          // [*, 1]
  const std::int32_t* line = nullptr;    // [num_rows]
  const std::uint16_t* sized = nullptr;  // by row
  const std::int64_t* begin = nullptr;
  const std::int64_t* end = nullptr;
  const std::int32_t* shift = nullptr;  // [num_sequences]
  bool has_sized = true;
};
OpCall call(const EveryArray& a) { return {.op = "every_array", .tokens = a.tokens.total()}; }
void run_cpu(const EveryArray& a) {
  const std::int32_t d = a.tokens.kv.head_dim;
  for (std::int32_t r = 0; r < a.tokens.kv.num_rows; ++r)
    for (std::int32_t i = 0; i < a.tokens.count(r); ++i) {
      const float shift = static_cast<float>(a.shift[a.tokens.kv.sequence(r)]);
      for (std::int32_t c = 0; c < d; ++c)
        a.tokens.at(r, i)[c] = static_cast<float>(a.code[(a.tokens.first[r] + i) * d + c]) * a.scale[a.line[r]] + shift;
      if (a.has_sized) a.tokens.at(r, i)[d - 1] = static_cast<float>(std::accumulate(a.sized + a.begin[r], a.sized + a.end[r], 0));
    }
}
void stored_arrays(EveryArray& a, StoredArrays& arrays) {
  arrays.rows(a.code, [&](std::int64_t entries) { return entries * a.tokens.kv.head_dim; });
  arrays.lines(a.scale, a.line, 1);
  if (a.has_sized) arrays.sized_rows(a.sized, a.begin, a.end);
  arrays.sequences(a.shift, 1, false);
}
bool goes_on(const EveryArray& a, const EveryArray& later, std::span<const RowList>) { return a.has_sized == later.has_sized; }

// Two sequences of two heads with 3 tokens each, in vectors of 2 channels.
struct CodedRows {
  KvStore store{{1, 2, 2, 2, 4}, 2, 0, true};
  std::vector<float> zeros = std::vector<float>(12, 0.0F);
  CodedRows() {
    for (std::int32_t s = 0; s < 2; ++s) store.append(s, zeros.data(), zeros.data(), 3, 0);
  }
};

// Codes of the listed token of each row, made when others of the batch are listed too.
std::unique_ptr<StoredCode> code_of(const KvRows& kv, std::int32_t token, std::int32_t first_row, bool has_sized, float scale = 10) {
  static const std::int64_t first[] = {0, 1, 2, 3, 4}, begin[] = {0, 2, 2, 3}, end[] = {2, 2, 3, 6};
  static const std::int32_t line[] = {3, 2, 1, 0}, shift[] = {100, 200};
  static const std::uint16_t sized[] = {1, 2, 3, 4, 5, 6};
  const std::vector<std::int32_t> index(4, token);
  std::vector<std::uint8_t> code(8);
  for (std::size_t i = 0; i < code.size(); ++i) code[i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(i) + 10 * token);
  const float scales[] = {4 * scale, 3 * scale, 2 * scale, scale};
  const EveryArray op{{kv, first, index.data(), false}, code.data(), scales, line, sized, begin, end, shift, has_sized};
  const TensorMemory memory;
  const std::vector<RowList> lists = row_lists(op.tokens, first_row, 2);
  return DecodeOpOf<EveryArray>(op).stored({memory, first_row, lists});
}

std::vector<float> decoded(const StoredCode& code, const KvRows& kv, std::int32_t first_row, std::int32_t part, std::int32_t rows) {
  const RowsView own(kv, first_row + part, rows);
  const TensorMemory memory;
  const Listing listing(std::span(code.lists()).subspan(static_cast<std::size_t>(part), static_cast<std::size_t>(rows)), memory);
  code.decode(listing.of(own.rows(), false), part);
  std::vector<float> all;
  for (std::int32_t r = 0; r < rows; ++r)
    for (std::int32_t i = 0; i < 3; ++i)
      for (std::int32_t c = 0; c < 2; ++c) all.push_back(own.rows().key(r, i)[c]);
  return all;
}

TEST(StoredCode, KeepsEveryKindOfArrayOfItsRows) {
  CodedRows rows;
  const auto code = code_of(rows.store.rows(), 1, 2, true);
  EXPECT_EQ(code->bytes(), 2 * 2 + 2 * 4 + 4 * 2);  // codes, scales, sized numbers; the shift is the model's
  // Row 2: codes 14, 15 with line 1; row 3: 16, 17 with line 0. Sequence 1.
  EXPECT_EQ(decoded(*code, rows.store.rows(), 2, 0, 2), (std::vector<float>{0, 0, 14 * 30 + 200, 3, 0, 0, 0, 0, 16 * 40 + 200, 15, 0, 0}));
  CodedRows others;
  EXPECT_EQ(decoded(*code, others.store.rows(), 2, 1, 1), (std::vector<float>{0, 0, 16 * 40 + 200, 15, 0, 0}));
}

TEST(StoredCode, LaterTokensJoinWhereTheParametersAreTheSame) {
  CodedRows rows;
  const KvRows kv = rows.store.rows();
  const auto code = code_of(kv, 0, 0, false);
  EXPECT_FALSE(code->take_over(*code_of(kv, 1, 0, true)));       // another kind of code
  EXPECT_FALSE(code->take_over(*code_of(kv, 1, 0, false, 20)));  // other scales
  const std::int64_t before = code->bytes();
  EXPECT_TRUE(code->take_over(*code_of(kv, 1, 0, false)));
  EXPECT_EQ(code->bytes(), before + 2 * 2);
  code->move_to(TensorMemory());
  EXPECT_EQ(decoded(*code, kv, 0, 0, 2), (std::vector<float>{100, 110, 200, 210, 0, 0, 140, 160, 340, 360, 0, 0}));
}

TEST(StoredCode, SizedRowsDoNotGrow) {
  CodedRows rows;
  EXPECT_FALSE(code_of(rows.store.rows(), 0, 0, true)->take_over(*code_of(rows.store.rows(), 1, 0, true)));
}

TEST(StoredCode, CostIsThatOfTheDecoder) {
  CodedRows rows;
  const std::int64_t first[] = {0, 1, 1, 1, 1};
  const std::int32_t index[] = {2};
  const EveryArray op{.tokens = {rows.store.rows(), first, index, false}};
  EXPECT_EQ(DecodeOpOf<EveryArray>(op).unpack_cost(), call(op));
  EXPECT_EQ(DecodeOpOf<EveryArray>(op).tokens().total(), 1);
}

// One byte per channel: its distance from the smallest number of its row, plus the position.
struct FromSmallest final : VectorCode {
  [[nodiscard]] std::string_view encode_name() const override { return "encode_from_smallest"; }
  [[nodiscard]] std::string_view decode_name() const override { return "decode_from_smallest"; }
  [[nodiscard]] std::int64_t bytes(std::int32_t head_dim) const override { return head_dim; }
  [[nodiscard]] std::int64_t encode_flops(std::int32_t head_dim) const override { return 2 * head_dim; }
  [[nodiscard]] std::int64_t decode_flops(std::int32_t head_dim) const override { return 2 * head_dim; }
  [[nodiscard]] std::int32_t num_parameters(std::int32_t) const override { return 1; }
  void encode(const float* x, std::int32_t head_dim, const Place& place, std::uint8_t* code) const override {
    for (std::int32_t c = 0; c < head_dim; ++c)
      code[c] = static_cast<std::uint8_t>(x[c] - *place.parameters + static_cast<float>(place.position));
  }
  void decode(const std::uint8_t* code, std::int32_t head_dim, const Place& place, float* x) const override {
    for (std::int32_t c = 0; c < head_dim; ++c) x[c] = static_cast<float>(code[c]) + *place.parameters - static_cast<float>(place.position);
  }
  void fit(std::span<const float> x, std::int32_t, std::span<const std::int32_t>, const float*, float* parameters) const override {
    *parameters = *std::min_element(x.begin(), x.end());
  }
};

// Rows 0 and 2 have lines of parameters, and list their tokens 0 and 2.
TEST(CodeVectors, FitsEncodesAndDecodesTheListedTokens) {
  KvStore store({1, 2, 2, 2, 4}, 2, 0, true);
  std::vector<float> keys(12);
  std::iota(keys.begin(), keys.end(), 10.0F);
  for (std::int32_t s = 0; s < 2; ++s) store.append(s, keys.data(), keys.data(), 3, 0);
  const std::int64_t first[] = {0, 2, 2, 4, 4};
  const std::int32_t index[] = {0, 2, 0, 2}, line[] = {1, -1, 0, -1};
  float parameters[] = {-1, -1, -1};
  std::uint8_t packed[8] = {};
  CodeVectors op{{store.rows(), first, index, false}, std::make_shared<FromSmallest>(), {parameters, line, nullptr}, packed};
  op.kind = CodeVectors::Kind::kFit;
  run_cpu(op);
  EXPECT_EQ(parameters[1], store.rows().key(0, 0)[0]);
  EXPECT_EQ(parameters[0], store.rows().key(2, 0)[0]);
  EXPECT_EQ(parameters[2], -1);
  op.kind = CodeVectors::Kind::kEncode;
  run_cpu(op);
  const std::uint8_t row[] = {0, 1, 10, 11};  // channels of token 0, then of token 2 at position 2
  EXPECT_TRUE(std::equal(row, row + 4, packed) && std::equal(row, row + 4, packed + 4));
  const std::vector<float> before(store.rows().key(2, 2), store.rows().key(2, 2) + 2);
  std::fill_n(store.rows().key(2, 2), 2, 0.0F);
  run_cpu(unpacking(op));
  EXPECT_EQ(std::vector<float>(store.rows().key(2, 2), store.rows().key(2, 2) + 2), before);
  EXPECT_EQ(call(op).bytes, 4 * 2 * 2 + 4 * 4 + 4 * 2 + 4 * 4);  // vectors of 2-byte elements, list, codes, parameters
}

}  // namespace
}  // namespace kvlab
