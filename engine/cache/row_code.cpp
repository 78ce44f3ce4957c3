#include "engine/cache/row_code.h"

#include <algorithm>
#include <span>

#include "kernels/cast/cast.h"
#include "kernels/dequantize/dequantize.h"
#include "kernels/low_rank/low_rank.h"
#include "kernels/outliers/outliers.h"
#include "kernels/prune_channels/prune_channels.h"
#include "kernels/sparsify/sparsify.h"

namespace kvlab {

namespace {

using Bytes = std::vector<std::uint8_t>;

// A vector grows by an eighth at most, so that what lies unused stays small.
template <class T>
void append_to(std::vector<T>& to, const std::vector<T>& more) {
  if (to.size() + more.size() > to.capacity()) to.reserve(std::max(to.size() + more.size(), to.size() + to.size() / 8));
  to.insert(to.end(), more.begin(), more.end());
}

template <class T>
std::vector<T> slice(const T* from, std::int64_t begin, std::int64_t count) {
  return {from + begin, from + begin + count};
}

template <class T>
std::int64_t bytes_in(const std::vector<T>& array) {
  return static_cast<std::int64_t>(array.size() * sizeof(T));
}

// A code whose numbers go on behind its own where Code::goes_on_as(later) says so.
template <class Code, class T>
class GrowingCode : public RowCode {
 public:
  using RowCode::RowCode;

 protected:
  std::vector<T> numbers_;  // token after token, or block after block

 private:
  [[nodiscard]] bool append(const RowCode& later) final {
    const auto* const more = dynamic_cast<const Code*>(&later);
    if (more == nullptr || !static_cast<const Code&>(*this).goes_on_as(*more)) return false;
    append_to(numbers_, more->numbers_);
    return true;
  }
};

class CastCode final : public GrowingCode<CastCode, std::uint8_t> {
 public:
  CastCode(const Cast& op, std::int32_t row) : GrowingCode({op.tokens, row}), type_(op.type) {
    const std::int64_t token = op.tokens.kv.head_dim * bytes_of(type_);
    numbers_ = slice(op.stored, op.tokens.first[row] * token, list().entries * token);
  }

  [[nodiscard]] std::int64_t bytes() const override { return bytes_in(numbers_); }
  void decode(const ListedTokens& listed) const override { run_cpu(Uncast{listed, type_, numbers_.data()}); }
  [[nodiscard]] bool goes_on_as(const CastCode& later) const { return later.type_ == type_; }

 private:
  StoredType type_;
};

class GroupCode final : public GrowingCode<GroupCode, std::uint8_t> {
 public:
  GroupCode(const Dequantize& op, std::int32_t row) : GrowingCode({op.tokens, row}), codec_(op.codec), mode_(op.mode) {
    std::int64_t before = 0;
    for (std::int32_t r = 0; r < row; ++r) before += packed_bytes(codec_, op.tokens.entries(r), op.tokens.kv.head_dim);
    numbers_ = slice(op.packed, before, packed_bytes(codec_, list().entries, op.tokens.kv.head_dim));
    if (op.scale_row != nullptr)
      scale_ = slice(op.channel_scale, std::int64_t{op.scale_row[row]} * op.tokens.kv.head_dim, op.tokens.kv.head_dim);
  }

  [[nodiscard]] std::int64_t bytes() const override { return bytes_in(numbers_) + bytes_in(scale_); }
  void decode(const ListedTokens& listed) const override {
    const std::int32_t line = 0;
    run_cpu(Dequantize{listed, codec_, scale_.data(), scale_.empty() ? nullptr : &line, numbers_.data(), mode_});
  }
  // Groups follow one another as if all tokens had come at once.
  [[nodiscard]] bool goes_on_as(const GroupCode& later) const {
    const bool is_whole = codec_.axis == GroupCodec::Axis::kToken || (codec_.group > 0 && list().entries % codec_.group == 0);
    return is_whole && later.codec_ == codec_ && later.mode_ == mode_ && later.scale_ == scale_;
  }

 private:
  GroupCodec codec_;
  Dequantize::Mode mode_;
  std::vector<float> scale_;  // [head_dim], or none
};

// Tokens without gaps between them.
class SparseCode final : public GrowingCode<SparseCode, std::uint8_t> {
 public:
  SparseCode(const Unsparsify& op, std::int32_t row) : GrowingCode({op.tokens, row}), keep_(op.keep) {
    const std::int64_t most = most_sparse_bytes(op.tokens.kv.head_dim, keep_);
    for (std::int32_t i = 0; i < list().tokens; ++i) {
      const std::uint8_t* const token = op.packed + (op.tokens.first[row] + i) * most;
      numbers_.insert(numbers_.end(), token, token + sparse_bytes(op.tokens.kv.head_dim, token));
    }
    numbers_.shrink_to_fit();
  }

  [[nodiscard]] std::int64_t bytes() const override { return bytes_in(numbers_); }
  void decode(const ListedTokens& listed) const override {
    const std::int64_t most = most_sparse_bytes(listed.kv.head_dim, keep_);
    Bytes apart(static_cast<std::size_t>(list().entries * most));
    const std::uint8_t* from = numbers_.data();
    for (std::int32_t i = 0; i < list().tokens; ++i) {
      const std::int64_t bytes = sparse_bytes(listed.kv.head_dim, from);
      std::copy_n(from, bytes, apart.data() + i * most);
      from += bytes;
    }
    run_cpu(Unsparsify{listed, keep_, apart.data()});
  }
  [[nodiscard]] bool goes_on_as(const SparseCode& later) const { return later.keep_ == keep_; }

 private:
  std::int32_t keep_;
};

// Numbers of the channels that stay, and a bit for each channel.
class ChannelCode final : public GrowingCode<ChannelCode, float> {
 public:
  ChannelCode(const PruneChannels& op, std::int32_t row) : GrowingCode({op.tokens, row}) {
    const std::int32_t d = op.tokens.kv.head_dim;
    stays_.assign(static_cast<std::size_t>((d + 7) / 8), 0);
    const std::vector<std::int32_t> ranked = ranked_channels(op, row);
    for (const std::int32_t c : std::span(ranked).first(static_cast<std::size_t>(op.keep)))
      stays_[static_cast<std::size_t>(c / 8)] |= static_cast<std::uint8_t>(1U << (c % 8));
    numbers_.reserve(static_cast<std::size_t>(list().tokens) * static_cast<std::size_t>(op.keep));
    for (std::int32_t i = 0; i < list().tokens; ++i)
      for (std::int32_t c = 0; c < d; ++c)
        if (stays(c)) numbers_.push_back(op.tokens.at(row, i)[c]);
  }

  [[nodiscard]] std::int64_t bytes() const override { return bytes_in(numbers_) + bytes_in(stays_); }
  void decode(const ListedTokens& listed) const override {
    const float* from = numbers_.data();
    for (std::int32_t i = 0; i < list().tokens; ++i)
      for (std::int32_t c = 0; c < listed.kv.head_dim; ++c) listed.at(0, i)[c] = stays(c) ? *from++ : 0.0F;
  }
  [[nodiscard]] bool goes_on_as(const ChannelCode& later) const { return later.stays_ == stays_; }

 private:
  [[nodiscard]] bool stays(std::int32_t channel) const {
    return (stays_[static_cast<std::size_t>(channel / 8)] >> (channel % 8) & 1U) != 0;
  }

  Bytes stays_;
};

// Of a row's own matrix, not of all heads together.
class LowRankCode final : public RowCode {
 public:
  LowRankCode(const LowRankRebuild& op, std::int32_t row) : RowCode({op.factor.tokens, row}), rank_(op.factor.rank) {
    const ListedTokens& tokens = op.factor.tokens;
    const std::int64_t width = tokens.kv.head_dim;
    std::int64_t rows_before = 0;
    for (std::int32_t r = 0; r < row; ++r) rows_before += tokens.entries(r) > 0 ? 1 : 0;
    left_ = slice(op.factor.left, tokens.first[row] * rank_, std::int64_t{list().entries} * rank_);
    right_ = slice(op.factor.right, rows_before * width * rank_, width * rank_);
  }

  [[nodiscard]] std::int64_t bytes() const override { return bytes_in(left_) + bytes_in(right_); }
  void decode(const ListedTokens& listed) const override {
    LowRankFactor factor;
    factor.tokens = listed;
    factor.rank = rank_;
    factor.left = const_cast<std::uint16_t*>(left_.data());
    factor.right = const_cast<std::uint16_t*>(right_.data());
    run_cpu(LowRankRebuild{factor});
  }

 private:
  std::int32_t rank_;
  std::vector<std::uint16_t> left_, right_;
};

class OutlierCode final : public RowCode {
 public:
  OutlierCode(const RestoreOutliers& op, std::int32_t row)
      : RowCode({op.outliers.tokens, row}), per_channel_(op.outliers.per_channel), share_(op.outliers.share) {
    std::int64_t before = 0;
    for (std::int32_t r = 0; r < row; ++r) before += numbers_of(op.outliers.tokens.entries(r), op.outliers.tokens.kv.head_dim);
    const std::int64_t count = numbers_of(list().entries, op.outliers.tokens.kv.head_dim);
    value_ = slice(op.outliers.value, before, count);
    const std::int32_t* const place = op.outliers.place + before;
    if (list().entries > kNoPlace)
      wide_place_ = slice(place, 0, count);
    else
      for (std::int64_t i = 0; i < count; ++i) place_.push_back(place[i] < 0 ? kNoPlace : static_cast<std::uint16_t>(place[i]));
    place_.shrink_to_fit();
  }

  [[nodiscard]] std::int64_t bytes() const override { return bytes_in(value_) + bytes_in(place_) + bytes_in(wide_place_); }
  void decode(const ListedTokens& listed) const override {
    std::vector<std::int32_t> place = wide_place_;
    for (const std::uint16_t p : place_) place.push_back(p == kNoPlace ? -1 : p);
    Outliers outliers;
    outliers.tokens = listed;
    outliers.per_channel = per_channel_;
    outliers.share = share_;
    outliers.value = const_cast<std::uint16_t*>(value_.data());
    outliers.place = place.data();
    run_cpu(RestoreOutliers{outliers});
  }

 private:
  static constexpr std::uint16_t kNoPlace = 0xffff;
  [[nodiscard]] std::int64_t numbers_of(std::int64_t entries, std::int64_t head_dim) const {
    if (entries == 0) return 0;
    return per_channel_ ? head_dim * outliers_of(share_, entries) : entries * outliers_of(share_, head_dim);
  }

  bool per_channel_;
  double share_;
  std::vector<std::uint16_t> value_, place_;  // places where they fit into 16 bits
  std::vector<std::int32_t> wide_place_;
};

template <class Code, class Op>
std::unique_ptr<RowCode> code_of(const Op& op, const ListedTokens& tokens, std::int32_t row) {
  if (tokens.entries(row) == 0 || tokens.count(row) == 0) return nullptr;
  return std::make_unique<Code>(op, row);
}

}  // namespace

RowList::RowList(const ListedTokens& listed, std::int32_t row) : tokens(listed.count(row)), entries(listed.entries(row)) {
  const std::int32_t* const index = listed.index + listed.first[row];
  for (std::int32_t i = 0; i < tokens; ++i) {
    if (runs.empty() || runs.back().begin + runs.back().count != index[i]) runs.push_back({index[i], 0});
    ++runs.back().count;
  }
}

void RowList::append(const RowList& later) {
  for (const TokenRun& run : later.runs) {
    if (!runs.empty() && runs.back().begin + runs.back().count == run.begin)
      runs.back().count += run.count;
    else
      runs.push_back(run);
  }
  tokens += later.tokens, entries += later.entries;
}

std::vector<std::int32_t> RowList::index() const {
  std::vector<std::int32_t> all;
  all.reserve(static_cast<std::size_t>(entries));
  for (const TokenRun& run : runs)
    for (std::int32_t i = 0; i < run.count; ++i) all.push_back(run.begin + i);
  all.resize(static_cast<std::size_t>(entries), -1);
  return all;
}

bool RowCode::take_over(const RowCode& later) {
  if (!list_.is_full() || !later.list_.is_full() || !append(later)) return false;
  list_.append(later.list_);
  return true;
}

std::unique_ptr<RowCode> row_code(const Cast& op, std::int32_t row) { return code_of<CastCode>(op, op.tokens, row); }
std::unique_ptr<RowCode> row_code(const Dequantize& op, std::int32_t row) { return code_of<GroupCode>(op, op.tokens, row); }
std::unique_ptr<RowCode> row_code(const LowRankRebuild& op, std::int32_t row) { return code_of<LowRankCode>(op, op.factor.tokens, row); }
std::unique_ptr<RowCode> row_code(const PruneChannels& op, std::int32_t row) { return code_of<ChannelCode>(op, op.tokens, row); }
std::unique_ptr<RowCode> row_code(const RestoreOutliers& op, std::int32_t row) { return code_of<OutlierCode>(op, op.outliers.tokens, row); }
std::unique_ptr<RowCode> row_code(const Unsparsify& op, std::int32_t row) { return code_of<SparseCode>(op, op.tokens, row); }

}  // namespace kvlab
