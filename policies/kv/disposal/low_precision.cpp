#include <algorithm>

#include "kernels/score/token_scores_op.h"
#include "kernels/storage/channel_divisors_op.h"
#include "kernels/storage/channel_stats_op.h"
#include "kernels/storage/quantize/quantize.h"
#include "kernels/storage/stored/stored_code.h"
#include "kernels/storage/take_due_op.h"
#include "policies/kv/disposal/merging.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// Quantized once, by token in channel groups. Key channels are balanced against the queries'.
class LowPrecision final : public Disposal {
 public:
  explicit LowPrecision(Params& p)
      : group_(p.optional<std::int32_t>("group_channels", 0, 0, 1024, "channels that share zero and scale; 0: half a head")),
        balances_(p.flag("balance", true, "scale key channels by sqrt(max |q| / max |k|) of the prompt before they are quantized")) {
    codec_.bits = p.optional<std::int32_t>("bits", 2, 1, 8, "of a code");
  }

  [[nodiscard]] Needs needs() const override { return {.step_queries = balances_}; }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }
  // Low-precision tokens are stored elsewhere, unmarked.
  [[nodiscard]] std::int32_t resident_words() const override { return 0; }
  [[nodiscard]] bool shrinks() const override { return false; }
  [[nodiscard]] bool encodes() const override { return true; }

  void observe(LayerStep& step) override {
    const auto in_prompt = [](const SeqStep& s) { return !s.decoding(); };
    if (!balances_ || std::none_of(step.seqs.begin(), step.seqs.end(), in_prompt)) return;
    std::int32_t* const line = state_rows(step);
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r)
      if (!in_prompt(step.seqs[static_cast<std::size_t>(step.kv.sequence(r))])) line[r] = -1;
    float* const largest_q = largest_q_.lines(step, step.kv.head_dim);
    ChannelStats queries{step.kv, ChannelStats::Source::kQueries};
    queries.queries = step.in.step.data(), queries.line = line;
    queries.into = ChannelStats::Into::kRaise, queries.out = largest_q;
    step.ops(queries);
    const std::int32_t* const completed = prompt_rows(step);
    if (completed == nullptr) return;
    ChannelStats largest_k{.kv = step.kv, .line = completed, .out = divisors_.lines(step, step.kv.head_dim)};
    step.ops(largest_k);
    ChannelDivisors balance{step.kv.num_rows, step.kv.head_dim, completed, ChannelDivisors::Kind::kBalance, largest_k.out};
    balance.largest_q = largest_q;
    step.ops(balance);
  }

  void rank(LayerStep& step, float* scores) override {
    step.ops(TokenScores{step.kv, TokenScores::Kind::kMark, first_word(), 0, nullptr, nullptr, scores});
  }

  void dispose(LayerStep& step, const Kept& kept) override {
    const PartedRows rows = part_rows(step, kept);
    const std::int64_t* const first = prefix_sums(step, [&](std::int32_t r) {  // they are dropped again
      const std::int32_t before = low_.at(step, r);
      low_.at(step, r) = std::max(before, rows.num_dropped(r));
      return std::max(0, rows.num_dropped(r) - before);
    });
    ListedTokens listed{step.kv, first, nullptr, false};
    if (listed.total() == 0) return;
    std::int32_t* const index = step.ops.ints(listed.total());
    listed.index = index;
    step.ops(TakeDue{step.kv, first_word(), kTokenMark, 0, 1, first, index, true, rows.dropped_first, rows.dropped});
    encode(step, listed, balances_ ? divisors_.lines(step, step.kv.head_dim) : nullptr, balances_ ? state_rows(step) : nullptr);
    encode(step, listed.of_values(), nullptr, nullptr);
  }

  [[nodiscard]] bool adds_segments() const override { return true; }
  void add_segments(LayerStep& step, std::vector<Segment>& segments) override {
    if (segments.front().index_first != nullptr) return;
    segments.front().read_bytes = 0;
    for (std::int32_t r = 0; r < step.kv.num_rows; ++r) {
      const std::int64_t low = low_.at(step, r);
      segments.front().read_bytes += (step.kv.len[r] - low) * 2 * step.kv.head_dim * step.kv.kv_bytes + low_bytes(step.model, low);
    }
  }

  [[nodiscard]] TierBytes resident(const ModelShape& model, std::int32_t layer, std::span<const SeqStep> seqs, const KvRows& kv,
                                   const Format& format, const TierBytes& rows) const override {
    TierBytes all = rows;
    for (std::int32_t r = 0; r < kv.num_rows; ++r) {
      const std::int32_t* low = low_.find(layer, seqs[static_cast<std::size_t>(kv.sequence(r))].index, r % kv.kv_heads);
      if (low == nullptr || *low == 0) continue;
      all.gpu += low_bytes(model, *low) + format.row_bytes(model, layer, kv.len[r] - *low) - format.row_bytes(model, layer, kv.len[r]);
    }
    return all;
  }

 private:
  [[nodiscard]] GroupCodec codec_for(std::int32_t head_dim) const {
    GroupCodec codec = codec_;
    codec.group = group_ > 0 ? group_ : (head_dim + 1) / 2;
    return codec;
  }
  // With the row's divisors in fp16.
  [[nodiscard]] std::int64_t low_bytes(const ModelShape& m, std::int64_t tokens) const {
    return tokens == 0 ? 0 : 2 * packed_bytes(codec_for(m.head_dim), tokens, m.head_dim) + (balances_ ? 2LL * m.head_dim : 0);
  }

  void encode(LayerStep& step, const ListedTokens& tokens, const float* divisors, const std::int32_t* lines) {
    const GroupCodec codec = codec_for(step.kv.head_dim);
    auto* const packed = reinterpret_cast<std::uint8_t*>(step.ops.ints((packed_bytes(tokens, codec) + 3) / 4));
    step.ops(Quantize{tokens, codec, divisors, lines, packed});
    step.decode(Quantize{tokens, codec, divisors, lines, packed, Quantize::Mode::kWrite});
  }

  std::int32_t group_;
  bool balances_;
  GroupCodec codec_;
  RowTable divisors_{*this, 1.0F}, largest_q_{*this, 0.0F};
  PerRow<std::int32_t> low_{*this};
};

KVLAB_REGISTER(Disposal, LowPrecision, "low_precision", "tokens that are not kept stay, with a few bits per number",
               "MiKV: Yang et al. 2024, arXiv:2402.18096, section 3");

}  // namespace

}  // namespace kvlab
