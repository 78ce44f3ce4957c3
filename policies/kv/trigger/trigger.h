#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/config/registration.h"
#include "policies/kv/allocator/allocator.h"
#include "policies/kv/part.h"

namespace kvlab {

// Tokens in one layer of a sequence.
class Held {
 public:
  Held(std::int32_t tokens) : longest_(tokens) {}  // NOLINT: equal rows with equal shares
  // `len` [kv_heads] of `n` tokens; the arguments must outlive this.
  Held(const Allocator& allocator, const ModelShape& model, std::int32_t layer, std::span<const std::int32_t> len, std::int32_t n)
      : longest_(*std::max_element(len.begin(), len.end())), layer_(layer), n_(n), len_(len), allocator_(&allocator), model_(&model) {}
  [[nodiscard]] std::int32_t tokens() const { return longest_; }
  // True: a row exceeds its share of the mean `target`. Shares from data count as equal; false if n <= target.
  [[nodiscard]] bool exceeds(std::int32_t target) const {
    if (allocator_ == nullptr || !allocator_->has_shares()) return longest_ > target;
    return n_ > target && allocator_->over_shares(*model_, layer_, len_, target, n_);
  }

 private:
  std::int32_t longest_, layer_ = 0, n_ = 0;
  std::span<const std::int32_t> len_ = {};
  const Allocator* allocator_ = nullptr;
  const ModelShape* model_ = nullptr;
};

class Trigger : public KvPart {
 public:
  // `tokens` per row on average, of `end` at the last cut, plus `grown` per row since.
  struct Bound {
    std::int32_t tokens = 0, end = 0, grown = 0;
  };
  // Mean tokens per KV head that may stay, after a layer's attention; nullopt: no action.
  [[nodiscard]] virtual std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const = 0;
  // nullopt: all tokens.
  [[nodiscard]] virtual std::optional<Bound> bound(const SeqStep& seq, const Budget& budget) const = 0;
  // Mean length to which rows refill before the next cut; 0: the target.
  [[nodiscard]] virtual std::int32_t full(const SeqStep&, const Budget&) const { return 0; }
  // True: acts before the prompt is complete.
  [[nodiscard]] virtual bool inside_prefill() const { return false; }
  [[nodiscard]] virtual bool in_decode() const { return false; }
  // One token leaves per new decoded one.
  [[nodiscard]] virtual bool keeps_counts() const { return false; }
  // True: decode cuts take few tokens, a multiple of unit().
  [[nodiscard]] virtual bool cuts_few() const { return false; }
  [[nodiscard]] virtual std::int32_t unit() const { return 1; }
  // Decode: tokens above the budget that a row may hold.
  [[nodiscard]] virtual std::int32_t slack_tokens() const { return 0; }
  // Decode steps, with this one, for which target() stays while uncut rows grow. Only called if shares are equal.
  [[nodiscard]] virtual std::int64_t lasts(const SeqStep&, std::int32_t /*held*/, const Budget&) const { return 1; }
  [[nodiscard]] virtual Protected protects(const SeqStep&) const { return {}; }
  // "" or why no cut leaves so few tokens (sentence end).
  [[nodiscard]] virtual std::string refuses_budget(std::int32_t /*tokens*/) const { return ""; }
  // False: the allocator decides how many tokens stay.
  [[nodiscard]] virtual bool needs_budget() const { return true; }
  [[nodiscard]] virtual bool acts() const { return true; }

  [[nodiscard]] Traits provides() const override;
  [[nodiscard]] std::vector<Conflict> conflicts() const override;
};

using TriggerRegistry = Registry<Trigger>;

}  // namespace kvlab
