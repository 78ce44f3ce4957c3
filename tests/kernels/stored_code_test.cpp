// Stored codes: the numbers of rows are kept, appended, moved and decoded in parts, whatever the operation.
#include "kernels/storage/stored/stored_code.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/storage/vector_code/vector_code.h"
#include "policies/kv/cache/kv_store.h"

namespace kvlab {

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

namespace {

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
}

TEST(StoredCode, DecodesOneRow) {
  CodedRows rows;
  const auto code = code_of(rows.store.rows(), 1, 2, true);
  EXPECT_EQ(decoded(*code, rows.store.rows(), 2, 1, 1), (std::vector<float>{0, 0, 16 * 40 + 200, 15, 0, 0}));
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
