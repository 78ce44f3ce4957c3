#include "kernels/storage/stored/stored_channels.h"

#include <algorithm>
#include <numeric>
#include <span>

#include "kernels/storage/token_copy_op.h"

namespace kvlab {

namespace {

// All channels of a row by score [d], in Sparsify's order.
std::vector<std::int32_t> ranked_channels(std::span<const float> score) {
  std::vector<std::int32_t> order(score.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::int32_t x, std::int32_t y) { return score[static_cast<std::size_t>(x)] > score[static_cast<std::size_t>(y)]; });
  return order;
}

// Kept channels [rows, (head_dim + 7) / 8].
class ChannelCode final : public StoredCode {
 public:
  ChannelCode(const Sparsify& op, const EncodedRows& rows)
      : StoredCode(rows), keep_(op.keep), numbers_(rows.memory), channels_(rows.memory) {
    list_channels(op, rows);
    const KvRows& kv = op.tokens.kv;
    std::vector<std::int64_t> bytes;
    for (const RowList& list : lists()) bytes.push_back(std::int64_t{list.entries} * keep_ * element_bytes(kv.type));
    std::uint8_t* const stored = numbers_.make_room(bytes);
    const RowsView own(kv, rows.first_row, static_cast<std::int32_t>(lists().size()));
    const Listing list(lists(), memory());
    run_in(memory(), copy_of(list.of(own.rows(), op.tokens.values), TokenCopy::Way::kFromPages, stored, 0));
  }

  [[nodiscard]] std::int64_t bytes() const override { return numbers_.bytes() + channels_.bytes(); }
  void decode(const ListedTokens& listed, std::int32_t first_row) const override {
    run_in(memory(), copy_of(listed, TokenCopy::Way::kIntoPages, numbers_.row(first_row), first_row));
  }

 private:
  // `row`: the list's first one of the code's.
  [[nodiscard]] TokenCopy copy_of(const ListedTokens& tokens, TokenCopy::Way way, void* stored, std::int32_t row) const {
    return {.tokens = tokens, .way = way, .stored = stored, .channels = channels_.row(row), .keep = keep_};
  }
  [[nodiscard]] bool append(const StoredCode& later) override {
    const auto* const more = dynamic_cast<const ChannelCode*>(&later);
    if (more == nullptr || !(more->channels_ == channels_)) return false;
    numbers_.append(more->numbers_);
    return true;
  }
  void move_numbers(const TensorMemory& memory) override {
    numbers_.move_to(memory);
    channels_.move_to(memory);
  }
  void list_channels(const Sparsify& op, const EncodedRows& rows) {
    const std::int32_t d = op.tokens.kv.head_dim, mask_bytes = (d + 7) / 8, num_rows = static_cast<std::int32_t>(rows.lists.size());
    std::vector<RowNumbers<float>::Range> ranges;
    for (std::int32_t h = 0; h < num_rows; ++h) ranges.push_back({op.channel_score + std::int64_t{op.line[rows.first_row + h]} * d, d});
    const RowNumbers<float> lines(rows.memory, ranges);
    const std::vector<float> score = memory().to_host(lines.row(0), std::int64_t{num_rows} * d);
    std::vector<std::uint8_t> mask(rows.lists.size() * static_cast<std::size_t>(mask_bytes), 0);
    for (std::int32_t h = 0; h < num_rows; ++h) {
      const std::vector<std::int32_t> ranked =
          ranked_channels(std::span(score).subspan(static_cast<std::size_t>(h * d), static_cast<std::size_t>(d)));
      for (const std::int32_t c : std::span(ranked).first(static_cast<std::size_t>(keep_)))
        mask[static_cast<std::size_t>(h * mask_bytes + c / 8)] |= static_cast<std::uint8_t>(1U << (c % 8));
    }
    std::uint8_t* const to = channels_.make_room(std::vector<std::int64_t>(rows.lists.size(), mask_bytes));
    memory().from_host(to, mask.data(), channels_.bytes());
  }

  std::int32_t keep_;
  RowNumbers<std::uint8_t> numbers_, channels_;
};

}  // namespace

OpCall PrunedVectors::unpack_cost() const {
  return call(TokenCopy{.tokens = op_.tokens, .way = TokenCopy::Way::kIntoPages, .keep = op_.keep});
}

std::unique_ptr<StoredCode> PrunedVectors::stored(const EncodedRows& rows) const { return std::make_unique<ChannelCode>(op_, rows); }

}  // namespace kvlab
