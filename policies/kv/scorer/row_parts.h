#pragma once

#include <span>
#include <vector>

#include "base/error.h"
#include "kernels/score/score_map_op.h"
#include "kernels/storage/token_copy_op.h"
#include "policies/kv/needs.h"
#include "policies/kv/step.h"

namespace kvlab {

// Rows hold every token so far.
struct RowPart {
  std::int32_t sequence = 0, begin = 0, len = 0;
};

// Parts of a layer's rows as sequences. Valid while the step's memory is. Kept: queries and keys before RoPE, token ids, W_o.
class RowParts {
 public:
  enum class Positions : std::uint8_t { kOwn, kOfSequence };
  // kOwn: positions start at 0.
  RowParts(LayerStep& step, std::span<const RowPart> parts, Positions positions) : whole_(step), parts_(parts.begin(), parts.end()) {
    const KvRows& kv = step.kv;
    first_.push_back(0);
    for (const RowPart& part : parts_) {
      SeqStep seq = step.seqs[static_cast<std::size_t>(part.sequence)];
      seq.seen_tokens = 0, seq.new_tokens = seq.prompt_tokens = part.len, seq.question_begin = -1;
      seqs_.push_back(seq);
      for (std::int32_t r = part.sequence * kv.kv_heads; r < (part.sequence + 1) * kv.kv_heads; ++r) {
        if (part.begin + part.len > kv.len[r]) throw InternalError("a part of a row reaches past its end");
        len_.push_back(part.len), page_begin_.push_back(static_cast<std::int32_t>(page_.size()));
        first_.push_back(first_.back() + part.len);
        to_.push_back(kv.first[r] + part.begin);
        for (std::int32_t i = part.begin; i < part.begin + part.len; ++i)
          page_.push_back(step.ops.computes() ? static_cast<std::int32_t>(kv.slot(r, i)) : 0);
      }
      observe(part, kv, positions == Positions::kOwn);
    }
    if (positions != Positions::kOwn) return;
    own_positions_ = step.ops.ints(kv.pool_tokens);
    step.ops(TokenCopy{.tokens = {rows(), first_.data()}, .kind = TokenCopy::Kind::kNumbers});
  }

  static Needs kept() { return {.pre_rope_queries = true, .pre_rope_keys = true, .output_weights = true, .token_ids = true}; }

  [[nodiscard]] LayerStep step() const {
    return {whole_.ops, whole_.model, whole_.layer, seqs_, rows(), observed(), whole_.seed, whole_.tensors, whole_.keeper};
  }
  // Part [step().kv.total()] to scores [kv.total()]; other tokens are unchanged.
  void put_back(const float* part, float* scores) const {
    ScoreMap copy{static_cast<std::int32_t>(to_.size()), first_.data(), ScoreMap::Kind::kPart, part};
    copy.out = scores, copy.start = to_.data();
    whole_.ops(copy);
  }

 private:
  [[nodiscard]] KvRows rows() const {
    KvRows kv = whole_.kv;
    kv.num_rows = static_cast<std::int32_t>(len_.size());
    kv.len = len_.data(), kv.first = first_.data(), kv.page_begin = page_begin_.data();
    kv.page = page_.data(), kv.page_tokens = 1;
    if (own_positions_ != nullptr) kv.position = own_positions_;
    return kv;
  }

  void observe(const RowPart& part, const KvRows& kv, bool own) {
    const Observed& in = whole_.in;
    const auto s = static_cast<std::size_t>(part.sequence);
    const std::int64_t at = part.begin, d = kv.head_dim;
    if (!in.pre_rope_queries.empty()) {
      const Queries& all = in.pre_rope_queries[s];
      queries_.push_back({all.data == nullptr ? nullptr : all.data + at * kv.kv_heads * kv.group * d, part.len, own ? 0 : part.begin});
    }
    const std::int64_t skipped = own ? at : 0;
    if (!in.pre_rope_keys.empty())
      keys_.push_back(in.pre_rope_keys[s] == nullptr ? nullptr : in.pre_rope_keys[s] + skipped * kv.kv_heads * d);
    if (!in.ids.empty()) ids_.push_back(in.ids[s] == nullptr ? nullptr : in.ids[s] + skipped);
  }
  [[nodiscard]] Observed observed() const {
    Observed in;
    in.pre_rope_queries = queries_, in.pre_rope_keys = keys_, in.ids = ids_;
    in.w_o = whole_.in.w_o;
    return in;
  }

  LayerStep& whole_;
  std::vector<RowPart> parts_;
  std::vector<SeqStep> seqs_;
  std::vector<std::int32_t> len_, page_begin_, page_;
  std::vector<std::int64_t> first_, to_;
  std::vector<Queries> queries_;
  std::vector<const float*> keys_;
  std::vector<const std::int32_t*> ids_;
  std::int32_t* own_positions_ = nullptr;
};

}  // namespace kvlab
