#include <fmt/format.h>

#include <algorithm>

#include "kernels/storage/evict_rows_op.h"
#include "policies/kv/trigger/trigger.h"

namespace kvlab {

namespace {

// Prompts are cut to whole pages; decoding rows over budget lose one page, not the newest.
class PageFull final : public Trigger {
 public:
  explicit PageFull(Params& p) : page_(p.optional<std::int32_t>("page_tokens", 16, 1, 1 << 16, "tokens of a page")) {}

  [[nodiscard]] std::optional<std::int32_t> target(const SeqStep& seq, const Held& held, const Budget& budget) const override {
    const std::int32_t tokens = std::max(page_, budget.of(seq.prompt_tokens)), whole = tokens / page_ * page_;
    const bool acts = seq.decoding() ? held.tokens() % page_ == 0 && held.exceeds(whole) : seq.completes_prompt() && held.exceeds(tokens);
    return acts ? std::optional(whole) : std::nullopt;
  }
  [[nodiscard]] std::optional<Bound> bound(const SeqStep& seq, const Budget& budget) const override {
    if (seq.end() < seq.prompt_tokens) return std::nullopt;
    return Bound{std::max(page_, budget.of(seq.prompt_tokens)), seq.end(), seq.decoding() ? slack_tokens() : 0};
  }
  [[nodiscard]] std::int64_t lasts(const SeqStep&, std::int32_t held, const Budget&) const override {
    return held % page_ == 0 ? 1 : page_ - held % page_;
  }
  [[nodiscard]] std::string refuses_budget(std::int32_t tokens) const override {
    return tokens < page_ ? fmt::format("is below a page of {} tokens", page_) : "";
  }
  [[nodiscard]] bool in_decode() const override { return true; }
  [[nodiscard]] bool cuts_few() const override { return page_ <= EvictRows::kMost; }
  [[nodiscard]] std::int32_t unit() const override { return page_; }
  [[nodiscard]] std::int32_t slack_tokens() const override { return page_ - 1; }
  [[nodiscard]] Protected protects(const SeqStep& seq) const override { return {0, seq.decoding() ? page_ : 0}; }

 private:
  std::int32_t page_;
};

KVLAB_REGISTER(Trigger, PageFull, "page_full", "frees one page when the newest is full",
               "PagedEviction: Chitty-Venkata et al. 2025, arXiv:2509.04377");

}  // namespace

}  // namespace kvlab
