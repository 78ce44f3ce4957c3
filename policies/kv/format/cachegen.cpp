#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "kernels/allocate/count_scores_op.h"
#include "kernels/score/token_scores_op.h"
#include "kernels/select/unit_lists_op.h"
#include "kernels/storage/channel_divisors_op.h"
#include "kernels/storage/channel_stats_op.h"
#include "kernels/storage/quantize/quantize.h"
#include "kernels/storage/stored/stored_code.h"
#include "policies/kv/format/delta_code_op.h"
#include "policies/kv/format/due_tokens.h"
#include "policies/kv/format/exponent_code/exponent_code.h"
#include "policies/kv/format/format.h"
#include "policies/kv/format/grouped.h"
#include "policies/kv/format/probe_sums.h"
#include "policies/kv/format/probes.h"
#include "policies/kv/step_arrays.h"

namespace kvlab {

namespace {

// coded / uncompressed bytes per layer, over the prompts so far; nominal before the first.
class MeasuredShare {
 public:
  explicit MeasuredShare(double nominal) : nominal_(nominal) {}
  void add(std::int32_t layer, std::int64_t coded_bytes, std::int64_t dense_bytes) {
    const auto l = static_cast<std::size_t>(layer);
    if (layers_.size() <= l) layers_.resize(l + 1);
    layers_[l].coded += coded_bytes;
    layers_[l].dense += dense_bytes;
  }
  // share * dense_bytes, rounded up.
  [[nodiscard]] std::int64_t of(std::int32_t layer, std::int64_t dense_bytes) const {
    const auto l = static_cast<std::size_t>(layer);
    const bool is_known = l < layers_.size() && layers_[l].dense != 0;
    const double share = is_known ? static_cast<double>(layers_[l].coded) / static_cast<double>(layers_[l].dense) : nominal_;
    return static_cast<std::int64_t>(std::ceil(share * static_cast<double>(dense_bytes)));
  }

 private:
  struct Layer {
    std::int64_t coded = 0, dense = 0;
  };
  double nominal_;
  std::vector<Layer> layers_;
};

// Later layers have coarser levels. transfer_bytes: measured, or before the first prompt (or on shapes) a bound without entropy coding.
class Cachegen final : public Format {
 public:
  explicit Cachegen(Params& p)
      : group_tokens_(p.optional<std::int32_t>("group_tokens", 10, 2, 1024, "an anchor and the tokens coded as differences to it")),
        fine_levels_(p.optional<std::int32_t>("fine_levels", 32, 4, 256, "quantization levels of differences in the first layers")),
        coarse_levels_(p.optional<std::int32_t>("coarse_levels", 16, 4, 256, "levels in the other layers")),
        fine_key_layers_(p.optional<std::int32_t>("fine_key_layers", 10, 0, 1024, "first layers with fine levels for K")),
        fine_value_layers_(p.optional<std::int32_t>("fine_value_layers", 2, 0, 1024, "first layers with fine levels for V")) {}

  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override {
    return (layer < fine_key_layers_ ? 1 : 0) + (layer < fine_value_layers_ ? 2 : 0);
  }
  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  void store(LayerStep& step) override {
    const ListedTokens keys = due_.take(step, first_word());
    if (keys.total() == 0) return;
    std::int32_t* const bytes = per_row(step, [&](std::int32_t r) {
      return step.ops.computes() ? 0 : static_cast<std::int32_t>(bound(step.layer, keys.entries(r), step.kv.head_dim));
    });
    step.ops(DeltaCode{keys, group_tokens_, levels(step.layer, false), bytes});
    step.ops(DeltaCode{keys.of_values(), group_tokens_, levels(step.layer, true), bytes});
    step.ops.settle("cachegen_bytes", step.layer, {bytes, static_cast<std::size_t>(step.kv.num_rows)});
    measured_.add(step.layer, std::accumulate(bytes, bytes + step.kv.num_rows, std::int64_t{0}), 2 * keys.dense_bytes());
  }

  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }
  [[nodiscard]] std::int64_t transfer_bytes(const ModelShape& m, std::int32_t layer, std::int32_t tokens) const override {
    return measured_.of(layer, row_bytes(m, layer, tokens));
  }

 private:
  [[nodiscard]] std::int32_t levels(std::int32_t layer, bool values) const {
    return layer < (values ? fine_value_layers_ : fine_key_layers_) ? fine_levels_ : coarse_levels_;
  }
  [[nodiscard]] std::int64_t bound(std::int32_t layer, std::int32_t tokens, std::int32_t head_dim) const {
    return delta_code_bound(tokens, head_dim, group_tokens_, levels(layer, false)) +
           delta_code_bound(tokens, head_dim, group_tokens_, levels(layer, true));
  }

  std::int32_t group_tokens_, fine_levels_, coarse_levels_, fine_key_layers_, fine_value_layers_;
  DueTokens due_{*this, {0, 1, false, true}};
  MeasuredShare measured_{5.0 / 16};
};

KVLAB_REGISTER(Format, Cachegen, "cachegen", "K and V as they come back from an entropy-coded transfer; dense on the GPU",
               "CacheGen: Liu et al. 2023, arXiv:2310.07240, section 5");

// The paper codes weights. Ours: a table per layer, K or V and piece; 64-token blocks per head. Sizes are measured; at first 11 of 16 bits.
class Dfloat11 final : public Format {
 public:
  explicit Dfloat11(Params&) {}

  [[nodiscard]] std::int32_t num_words() const override { return 1; }

  void store(LayerStep& step) override {
    const ListedTokens keys = due_.take(step, first_word());
    if (keys.total() == 0) return;
    const std::int64_t d = step.kv.head_dim;
    std::int32_t* const bytes = per_row(
        step, [&](std::int32_t r) { return step.ops.computes() ? 0 : static_cast<std::int32_t>((2 * 11 * d * keys.entries(r) + 7) / 8); });
    encode(step, keys, bytes);
    encode(step, keys.of_values(), bytes);
    step.ops.settle("dfloat11_bytes", step.layer, {bytes, static_cast<std::size_t>(step.kv.num_rows)});
    measured_.add(step.layer, std::accumulate(bytes, bytes + step.kv.num_rows, std::int64_t{0}), 4 * d * keys.total());
  }

  [[nodiscard]] std::int64_t row_bytes(const ModelShape& m, std::int32_t layer, std::int32_t tokens) const override {
    const std::int64_t coded = due_.rule().encoded(tokens), d = m.head_dim;
    return (coded > 0 ? measured_.of(layer, 4 * coded * d) : 0) + 2 * (tokens - coded) * d * m.kv_bytes;
  }

 private:
  static void encode(LayerStep& step, const ListedTokens& tokens, std::int32_t* bytes) {
    auto* const packed = reinterpret_cast<std::uint8_t*>(step.ops.ints((most_exponent_bytes(tokens) + 3) / 4));
    auto* const lengths = reinterpret_cast<std::uint8_t*>(step.ops.ints(std::int64_t{kExponentTable} / 4 * step.kv.num_sequences()));
    std::int64_t* const begin = step.ops.host_longs(step.kv.num_rows);
    std::int64_t* const end = step.ops.host_longs(step.kv.num_rows);
    ExponentCode code{tokens, bytes, packed, lengths, begin, end};
    step.ops(code);
    code.unpacks = true;
    step.decode(code);
  }

  DueTokens due_{*this, {0, kExponentBlock}};
  MeasuredShare measured_{11.0 / 16};
};

KVLAB_REGISTER(Format, Dfloat11, "dfloat11", "bf16 K and V without loss, exponents in a Huffman code",
               "DFloat11: Zhang et al. 2025, arXiv:2504.11651, section 2");

// K per channel; V per token, channels divided by the square root of their largest number. The prompt is encoded when complete, decode in
// blocks.
class Zipcache final : public Format {
 public:
  explicit Zipcache(Params& p)
      : high_bits_(p.optional<std::int32_t>("salient_bits", 4, 1, 8, "of codes of salient tokens")),
        low_bits_(p.optional<std::int32_t>("other_bits", 2, 1, 8, "of codes of other tokens")),
        salient_frac_(p.optional<double>("salient_frac", 0.6, 0, 1, "share of tokens that are salient")),
        mass_frac_(p.optional<double>(
            "mass_frac", 0, 0, 1,
            "salient are as many as hold this share of the probes' attention, in place of salient_frac (ZipVL); 0: off")),
        probes_{p.optional<double>("probe_frac", 0.05, 0.001, 1, "share of queries that are probes: of the newest, and again at random"),
                p.optional<std::int32_t>("block_tokens", 100, 1, 1 << 16, "tokens of decode encoded together")},
        due_(*this, {0, probes_.block_tokens}) {}

  [[nodiscard]] Needs needs() const override { return {.step_queries = true}; }
  [[nodiscard]] std::int32_t num_words() const override { return 2; }
  [[nodiscard]] std::int32_t resident_words() const override { return 1; }  // the probes' sums
  // The probes so far in decode.
  void step_key(const SeqStep& seq, StepKey& key) const override { key.add(seq.end() - seq.prompt_tokens); }
  // Count when a block is encoded; otherwise only if the token is a probe.
  void whole_key(const SeqStep& seq, StepKey& key) const override {
    if (due_.rule().encoded(seq.end()) != due_.rule().encoded(seq.seen_tokens)) return step_key(seq, key);
    key.add(probes_.ranges(seq, seq.seen_tokens, seq.end()).empty() ? -2 : -1);
  }

  void store(LayerStep& step) override {
    add_probes(step);
    const ListedTokens keys = due_.take(step, first_word());
    if (keys.total() == 0) return;
    float* const scores = step.ops.floats(step.kv.total());
    score(step, scores);
    const Parted parted = part(step, keys, scores);
    const GroupCodec k{GroupCodec::Axis::kChannel, 0, 0, false}, v{GroupCodec::Axis::kToken, 0, 0, false};
    encode(step, parted.high, k, high_bits_, {});
    encode(step, parted.low, k, low_bits_, {});
    const ChannelScales scales = value_scales(step, keys);
    encode(step, parted.high.of_values(), v, high_bits_, scales);
    encode(step, parted.low.of_values(), v, low_bits_, scales);
  }

  // Counts encoded tokens as the prompt's; decode blocks have their own zeros and scales. mass_frac: the measured share, or all before the
  // first prompt.
  [[nodiscard]] std::int64_t row_bytes(const ModelShape& m, std::int32_t layer, std::int32_t tokens) const override {
    const std::int64_t n = due_.rule().encoded(tokens), d = m.head_dim, dense = 2 * (tokens - n) * d * m.kv_bytes;
    if (n == 0) return dense;
    const std::int64_t high = mass_frac_ > 0 ? measured_.of(layer, n) : salient_of(static_cast<std::int32_t>(n));
    const auto both = [&](std::int32_t bits, std::int64_t count) {
      return packed_bytes({GroupCodec::Axis::kChannel, bits, 0, false}, count, d) +
             packed_bytes({GroupCodec::Axis::kToken, bits, 0, false}, count, d);
    };
    return both(high_bits_, high) + both(low_bits_, n - high) + 2 * d + dense;
  }

 private:
  struct Parted {
    ListedTokens high, low;
  };
  [[nodiscard]] std::int32_t salient_of(std::int32_t n) const { return static_cast<std::int32_t>(std::lround(salient_frac_ * n)); }

  void add_probes(LayerStep& step) {
    std::vector<std::int64_t> first{0};
    std::vector<Queries> pieces;
    std::vector<std::int32_t> end;
    for (std::size_t s = 0; s < step.seqs.size(); ++s) {
      const Queries& all = step.in.step[s];
      for (const Probes::Range& range : probes_.ranges(step.seqs[s], step.seqs[s].seen_tokens, step.seqs[s].end())) {
        const std::int64_t skipped = static_cast<std::int64_t>(range.begin - all.first_position) * step.model.q_heads * step.kv.head_dim;
        pieces.push_back({all.data == nullptr ? nullptr : all.data + skipped, range.end - range.begin, range.begin});
      }
      first.push_back(static_cast<std::int64_t>(pieces.size()));
      end.push_back(step.seqs[s].end());
    }
    if (!pieces.empty()) step.ops(ProbeSums{step.kv, first_word() + 1, first.data(), pieces.data(), end.data()});
  }

  void score(LayerStep& step, float* scores) const {
    std::vector<std::int64_t> first{0};
    std::vector<std::int32_t> begin, end;
    for (const SeqStep& seq : step.seqs) {
      for (const Probes::Range& range : probes_.ranges(seq, 0, seq.end())) begin.push_back(range.begin), end.push_back(range.end);
      first.push_back(static_cast<std::int64_t>(begin.size()));
    }
    step.ops(TokenScores{.kv = step.kv,
                         .kind = TokenScores::Kind::kProbeMean,
                         .first_word = first_word() + 1,
                         .scores = scores,
                         .probes = {first.data(), begin.data(), end.data()}});
  }

  Parted part(LayerStep& step, const ListedTokens& keys, const float* scores) {
    const std::int32_t rows = step.kv.num_rows;
    std::int32_t* const salient =
        per_row(step, [&](std::int32_t r) { return mass_frac_ > 0 ? keys.entries(r) : salient_of(keys.entries(r)); });
    if (mass_frac_ > 0) {
      step.ops(CountScores{.num_rows = rows,
                           .first = keys.first,
                           .kind = CountScores::Kind::kListedMass,
                           .limit = mass_frac_,
                           .count = salient,
                           .index = keys.index,
                           .kv = step.kv,
                           .word = first_word() + 1});
      step.ops.settle("zipvl_salient", step.layer, {salient, static_cast<std::size_t>(rows)});
    }
    const std::int64_t* const high_first = prefix_sums(step, [&](std::int32_t r) { return salient[r]; });
    const std::int64_t* const low_first = prefix_sums(step, [&](std::int32_t r) { return keys.entries(r) - salient[r]; });
    measured_.add(step.layer, high_first[rows], keys.total());
    std::int32_t* const high = step.ops.ints(high_first[rows]);
    std::int32_t* const low = step.ops.ints(low_first[rows]);
    step.ops(SelectUnits{.num_rows = rows,
                         .lists = {.first = keys.first, .unit = keys.index},
                         .score_first = step.kv.first,
                         .scores = scores,
                         .first = high_first,
                         .unit = high,
                         .rest = low});
    return {{step.kv, high_first, high, false}, {step.kv, low_first, low, false}};
  }

  ChannelScales value_scales(LayerStep& step, const ListedTokens& keys) {
    const std::int32_t* const line = per_row(step, [&](std::int32_t r) { return keys.entries(r) > 0 ? r : -1; });
    ChannelStats largest{.kv = step.kv,
                         .source = ChannelStats::Source::kValues,
                         .listed = keys,
                         .line = line,
                         .out = step.ops.floats(static_cast<std::int64_t>(step.kv.num_rows) * step.kv.head_dim)};
    step.ops(largest);
    step.ops(ChannelDivisors{step.kv.num_rows, step.kv.head_dim, line, ChannelDivisors::Kind::kSmooth, largest.out});
    return {largest.out, per_row(step, [](std::int32_t r) { return r; })};
  }

  static void encode(LayerStep& step, const ListedTokens& tokens, GroupCodec codec, std::int32_t bits, const ChannelScales& scales) {
    codec.bits = bits;
    encode_groups(step, tokens, codec, scales);
  }

  std::int32_t high_bits_, low_bits_;
  double salient_frac_, mass_frac_;
  Probes probes_;
  DueTokens due_;
  MeasuredShare measured_{1.0};
};

KVLAB_REGISTER(Format, Zipcache, "zipcache", "tokens that probe queries attend to in more bits than the others",
               "ZipCache: He et al. 2024, arXiv:2405.14256, section 4; ZipVL: He et al. 2024, arXiv:2410.08584");

}  // namespace

}  // namespace kvlab
