#include "engine/cache/rows_code.h"

#include <algorithm>
#include <numeric>

#include "engine/cache/row_numbers.h"
#include "engine/cache/rows_view.h"
#include "kernels/storage/cast/cast.h"
#include "kernels/storage/dequantize/dequantize.h"
#include "kernels/storage/low_rank/low_rank.h"
#include "kernels/storage/outliers/outliers.h"
#include "kernels/storage/prune_channels/prune_channels.h"
#include "kernels/storage/sparsify/sparsify.h"
#include "kernels/storage/token_copy/token_copy.h"

namespace kvlab {

namespace {

// What the rows have in an operation's array, in which all rows lie one behind another; numbers_of(entries of a row) tells how long they
// are.
template <class T, class F>
RowNumbers<T> numbers_in(const T* array, const ListedTokens& listed, const EncodedRows& rows, F&& numbers_of) {
  const auto count_of = [&](std::int32_t entries) { return entries == 0 ? std::int64_t{0} : std::int64_t{numbers_of(entries)}; };
  std::vector<typename RowNumbers<T>::Range> ranges;
  for (std::int32_t r = 0; r < rows.first_row; ++r) array += count_of(listed.entries(r));
  for (std::size_t h = 0; h < rows.lists.size(); ++h) {
    ranges.push_back({array, count_of(rows.lists[h].entries)});
    array += count_of(listed.entries(rows.first_row + static_cast<std::int32_t>(h)));
  }
  return {rows.memory, ranges};
}

// The rows' lines of [*, width], in their order.
RowNumbers<float> lines_of(const float* lines, const std::int32_t* line, std::int64_t width, const EncodedRows& rows) {
  if (line == nullptr) return RowNumbers<float>(rows.memory);
  std::vector<RowNumbers<float>::Range> ranges;
  for (std::size_t h = 0; h < rows.lists.size(); ++h)
    ranges.push_back({lines + line[static_cast<std::size_t>(rows.first_row) + h] * width, width});
  return {rows.memory, ranges};
}

// A code whose numbers go on behind its own where Code::goes_on_as(later) says so.
template <class Code, class T>
class GrowingCode : public RowsCode {
 protected:
  GrowingCode(const EncodedRows& rows, RowNumbers<T> numbers) : RowsCode(rows), numbers_(std::move(numbers)) {}
  void move_numbers(const TensorMemory& memory) override { numbers_.move_to(memory); }
  RowNumbers<T> numbers_;  // token after token, or block after block

 private:
  [[nodiscard]] bool append(const RowsCode& later) final {
    const auto* const more = dynamic_cast<const Code*>(&later);
    if (more == nullptr || !static_cast<const Code&>(*this).goes_on_as(*more)) return false;
    numbers_.append(more->numbers_);
    return true;
  }
};

class CastCode final : public GrowingCode<CastCode, std::uint8_t> {
 public:
  CastCode(const Cast& op, const EncodedRows& rows)
      : GrowingCode(rows, numbers_in(op.stored, op.tokens, rows,
                                     [&](std::int64_t entries) { return entries * op.tokens.kv.head_dim * bytes_of(op.type); })),
        type_(op.type) {}

  [[nodiscard]] std::int64_t bytes() const override { return numbers_.bytes(); }
  void decode(const ListedTokens& listed, std::int32_t first_row) const override {
    run_in(memory(), Uncast{listed, type_, numbers_.row(first_row)});
  }
  [[nodiscard]] bool goes_on_as(const CastCode& later) const { return later.type_ == type_; }

 private:
  StoredType type_;
};

class GroupCode final : public GrowingCode<GroupCode, std::uint8_t> {
 public:
  GroupCode(const Dequantize& op, const EncodedRows& rows)
      : GrowingCode(rows, numbers_in(op.packed, op.tokens, rows,
                                     [&](std::int64_t entries) { return packed_bytes(op.codec, entries, op.tokens.kv.head_dim); })),
        codec_(op.codec),
        mode_(op.mode),
        scale_(lines_of(op.channel_scale, op.scale_row, op.tokens.kv.head_dim, rows)) {}

  [[nodiscard]] std::int64_t bytes() const override { return numbers_.bytes() + scale_.bytes(); }
  void decode(const ListedTokens& listed, std::int32_t first_row) const override {
    Dequantize op{listed, codec_, nullptr, nullptr, numbers_.row(first_row), mode_};
    std::vector<std::int32_t> line(static_cast<std::size_t>(listed.kv.num_rows));
    std::iota(line.begin(), line.end(), 0);
    if (scale_.rows() > 0) op.channel_scale = scale_.row(first_row), op.scale_row = line.data();
    run_in(memory(), op);
  }
  // Groups follow one another as if all tokens had come at once.
  [[nodiscard]] bool goes_on_as(const GroupCode& later) const {
    const auto is_whole = [&](const RowList& list) {
      return codec_.axis == GroupCodec::Axis::kToken || (codec_.group > 0 && list.entries % codec_.group == 0);
    };
    return later.codec_ == codec_ && later.mode_ == mode_ && std::all_of(lists().begin(), lists().end(), is_whole) &&
           later.scale_ == scale_;
  }

 private:
  void move_numbers(const TensorMemory& memory) override {
    GrowingCode::move_numbers(memory);
    scale_.move_to(memory);
  }

  GroupCodec codec_;
  Dequantize::Mode mode_;
  RowNumbers<float> scale_;  // [rows, head_dim], or none
};

// Tokens have as much room as the operation gives them, which is that of the bitmaps, and of the numbers in the worst case.
class SparseCode final : public GrowingCode<SparseCode, std::uint8_t> {
 public:
  SparseCode(const Unsparsify& op, const EncodedRows& rows)
      : GrowingCode(rows, numbers_in(op.packed, op.tokens, rows,
                                     [&](std::int64_t entries) { return entries * most_sparse_bytes(op.tokens.kv.head_dim, op.keep); })),
        keep_(op.keep) {}

  [[nodiscard]] std::int64_t bytes() const override { return numbers_.bytes(); }
  void decode(const ListedTokens& listed, std::int32_t first_row) const override {
    run_in(memory(), Unsparsify{listed, keep_, numbers_.row(first_row)});
  }
  [[nodiscard]] bool goes_on_as(const SparseCode& later) const { return later.keep_ == keep_; }

 private:
  std::int32_t keep_;
};

// Numbers of the channels that stay, and a bit for each channel.
class ChannelCode final : public GrowingCode<ChannelCode, std::uint8_t> {
 public:
  ChannelCode(const PruneChannels& op, const EncodedRows& rows)
      : GrowingCode(rows, RowNumbers<std::uint8_t>(rows.memory)), keep_(op.keep), channels_(rows.memory) {
    list_channels(op, rows);
    const KvRows& kv = op.tokens.kv;
    std::vector<std::int64_t> bytes;
    for (const RowList& list : lists()) bytes.push_back(std::int64_t{list.entries} * keep_ * element_bytes(kv.type));
    std::uint8_t* const stored = numbers_.make_room(bytes);
    const RowsView own(kv, rows.first_row, static_cast<std::int32_t>(lists().size()));
    const Listing list(lists(), memory());
    run_in(memory(), VectorCopy{list.of(own.rows(), op.tokens.values), TokenCopyWay::kFromPages, stored, channels_.row(0), keep_});
  }

  [[nodiscard]] std::int64_t bytes() const override { return numbers_.bytes() + channels_.bytes(); }
  void decode(const ListedTokens& listed, std::int32_t first_row) const override {
    run_in(memory(), VectorCopy{listed, TokenCopyWay::kIntoPages, numbers_.row(first_row), channels_.row(first_row), keep_});
  }
  [[nodiscard]] bool goes_on_as(const ChannelCode& later) const { return later.channels_ == channels_; }

 private:
  void move_numbers(const TensorMemory& memory) override {
    GrowingCode::move_numbers(memory);
    channels_.move_to(memory);
  }
  // From the scores, which are read back.
  void list_channels(const PruneChannels& op, const EncodedRows& rows) {
    const std::int32_t d = op.tokens.kv.head_dim, mask_bytes = (d + 7) / 8, num_rows = static_cast<std::int32_t>(rows.lists.size());
    const RowNumbers<float> lines = lines_of(op.channel_score, op.line, d, rows);
    const std::vector<float> score = memory().to_host(lines.row(0), std::int64_t{num_rows} * d);
    std::vector<std::int32_t> line(rows.lists.size());
    std::iota(line.begin(), line.end(), 0);
    std::vector<std::uint8_t> mask(rows.lists.size() * static_cast<std::size_t>(mask_bytes), 0);
    for (std::int32_t h = 0; h < num_rows; ++h) {
      const std::vector<std::int32_t> ranked = ranked_channels({op.tokens, score.data(), line.data(), keep_}, h);
      for (const std::int32_t c : std::span(ranked).first(static_cast<std::size_t>(keep_)))
        mask[static_cast<std::size_t>(h * mask_bytes + c / 8)] |= static_cast<std::uint8_t>(1U << (c % 8));
    }
    std::uint8_t* const to = channels_.make_room(std::vector<std::int64_t>(rows.lists.size(), mask_bytes));
    memory().from_host(to, mask.data(), channels_.bytes());
  }

  std::int32_t keep_;
  RowNumbers<std::uint8_t> channels_;  // [rows, (head_dim + 7) / 8]
};

// Of each row's own matrix, not of all heads together.
class LowRankCode final : public RowsCode {
 public:
  LowRankCode(const LowRankRebuild& op, const EncodedRows& rows)
      : RowsCode(rows),
        rank_(op.factor.rank),
        left_(numbers_in(op.factor.left, op.factor.tokens, rows, [&](std::int64_t entries) { return entries * op.factor.rank; })),
        right_(numbers_in(op.factor.right, op.factor.tokens, rows,
                          [&](std::int64_t) { return std::int64_t{op.factor.tokens.kv.head_dim} * op.factor.rank; })) {}

  [[nodiscard]] std::int64_t bytes() const override { return left_.bytes() + right_.bytes(); }
  void decode(const ListedTokens& listed, std::int32_t first_row) const override {
    LowRankFactor factor;
    factor.tokens = listed;
    factor.rank = rank_;
    factor.left = left_.row(first_row), factor.right = right_.row(first_row);
    run_in(memory(), LowRankRebuild{factor});
  }

 private:
  void move_numbers(const TensorMemory& memory) override {
    left_.move_to(memory);
    right_.move_to(memory);
  }

  std::int32_t rank_;
  RowNumbers<std::uint16_t> left_, right_;
};

class OutlierCode final : public RowsCode {
 public:
  OutlierCode(const RestoreOutliers& op, const EncodedRows& rows)
      : RowsCode(rows),
        per_channel_(op.outliers.per_channel),
        share_(op.outliers.share),
        value_(taken(op.outliers.value, op, rows)),
        narrow_(rows.memory),
        wide_(rows.memory) {
    if (op.outliers.place.wide != nullptr)
      wide_ = taken(op.outliers.place.wide, op, rows);
    else
      narrow_ = taken(op.outliers.place.narrow, op, rows);
  }

  [[nodiscard]] std::int64_t bytes() const override { return value_.bytes() + narrow_.bytes() + wide_.bytes(); }
  void decode(const ListedTokens& listed, std::int32_t first_row) const override {
    Outliers outliers;
    outliers.tokens = listed;
    outliers.per_channel = per_channel_;
    outliers.share = share_;
    outliers.value = value_.row(first_row);
    if (wide_.rows() > 0)
      outliers.place.wide = wide_.row(first_row);
    else
      outliers.place.narrow = narrow_.row(first_row);
    run_in(memory(), RestoreOutliers{outliers});
  }

 private:
  void move_numbers(const TensorMemory& memory) override {
    value_.move_to(memory);
    narrow_.move_to(memory);
    wide_.move_to(memory);
  }
  template <class T>
  static RowNumbers<T> taken(const T* array, const RestoreOutliers& op, const EncodedRows& rows) {
    const std::int64_t d = op.outliers.tokens.kv.head_dim;
    return numbers_in(array, op.outliers.tokens, rows, [&](std::int64_t entries) {
      return op.outliers.per_channel ? d * outliers_of(op.outliers.share, entries) : entries * outliers_of(op.outliers.share, d);
    });
  }

  bool per_channel_;
  double share_;
  RowNumbers<std::uint16_t> value_, narrow_;  // narrow_ or wide_: their places
  RowNumbers<std::int32_t> wide_;
};

}  // namespace

bool RowsCode::take_over(const RowsCode& later) {
  const auto is_full = [](const RowList& list) { return list.is_full(); };
  if (!std::all_of(lists_.begin(), lists_.end(), is_full) || !std::all_of(later.lists_.begin(), later.lists_.end(), is_full)) return false;
  if (!append(later)) return false;
  for (std::size_t h = 0; h < lists_.size(); ++h) lists_[h].append(later.lists_[h]);
  return true;
}

std::unique_ptr<RowsCode> rows_code(const Cast& op, const EncodedRows& rows) { return std::make_unique<CastCode>(op, rows); }
std::unique_ptr<RowsCode> rows_code(const Dequantize& op, const EncodedRows& rows) { return std::make_unique<GroupCode>(op, rows); }
std::unique_ptr<RowsCode> rows_code(const LowRankRebuild& op, const EncodedRows& rows) { return std::make_unique<LowRankCode>(op, rows); }
std::unique_ptr<RowsCode> rows_code(const PruneChannels& op, const EncodedRows& rows) { return std::make_unique<ChannelCode>(op, rows); }
std::unique_ptr<RowsCode> rows_code(const RestoreOutliers& op, const EncodedRows& rows) { return std::make_unique<OutlierCode>(op, rows); }
std::unique_ptr<RowsCode> rows_code(const Unsparsify& op, const EncodedRows& rows) { return std::make_unique<SparseCode>(op, rows); }

}  // namespace kvlab
