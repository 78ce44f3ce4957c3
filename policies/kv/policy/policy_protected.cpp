#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/score/protect_op.h"
#include "kernels/score/score_map_op.h"
#include "policies/kv/policy/policy.h"

namespace kvlab {

namespace {

struct Ends {
  std::int32_t first, last;
};
Ends protected_ends(const Protected& a, const Protected& b, std::int32_t prompt_tokens, std::int32_t kept) {
  return {std::max({a.sinks, b.sinks, a.before, b.before, a.prompt || b.prompt ? prompt_tokens : 0}),
          std::max(a.recent_of(kept), b.recent_of(kept))};
}

std::string describe(const Ends& ends) {
  if (ends.first == 0) return fmt::format("the {} last tokens", ends.last);
  if (ends.last == 0) return fmt::format("the {} first tokens", ends.first);
  return fmt::format("the {} first and {} last tokens", ends.first, ends.last);
}

}  // namespace

KvPolicy::Least KvPolicy::least_share(std::int32_t target, std::int32_t full, std::int32_t n) const {
  Least least{target, 0};
  if (parts_.allocator->is_uniform()) return {std::min(target, parts_.allocator->expected_part(model_, 0, 0, target, full, n)), 0};
  for (std::int32_t l = 0; l < model_.num_layers && !parts_.allocator->depends_on_data(); ++l)
    for (std::int32_t h = 0; h < model_.kv_heads; ++h)
      if (const std::int32_t tokens = parts_.allocator->expected_part(model_, l, h, target, full, n); tokens < least.tokens)
        least = {tokens, l};
  return least;
}

void KvPolicy::refuse_small_budget(const SeqStep& seq) const {
  if (const std::string why = why_small_budget(seq); !why.empty())
    throw InputError(fmt::format("recipe '{}' cannot run: {}", recipe_.name, why));
}

std::int32_t KvPolicy::kept_of_prompt(const SeqStep& seq) const {
  const std::int32_t prompt = seq.prompt_tokens;
  const SeqStep last{seq.index, 0, prompt, prompt, seq.question_begin};
  const std::optional<std::int32_t> target = parts_.trigger->target(last, prompt, recipe_.budget);
  return target ? raised(last, *target) : prompt;
}

// True: rows cut to an average of `target` keep what always stays.
bool KvPolicy::fits(const SeqStep& seq, std::int32_t target) const {
  const Least least = least_share(target, parts_.trigger->full(seq, recipe_.budget), seq.end());
  const Protected by_trigger = parts_.trigger->protects(seq);
  const std::int32_t prompt = by_trigger.prompt && seq.decoding() ? kept_of_prompt(seq) : seq.prompt_tokens;
  const Ends ends = protected_ends(parts_.scorer->protects(), by_trigger, prompt, least.tokens);
  return std::min<std::int64_t>(std::int64_t{ends.first} + ends.last, seq.end()) <= least.tokens;
}

// Smallest value >= target that fits().
std::int32_t KvPolicy::raised(const SeqStep& seq, std::int32_t target) const {
  if (!recipe_.has_budget || !parts_.scorer || recipe_.peer_ties || target >= seq.end()) return target;  // peers cut protected tokens too
  const auto hash = static_cast<std::size_t>(seq.end() * 31 + target * 7 + seq.prompt_tokens);
  Raised& known = known_raised_[hash % known_raised_.size()];
  if (known.end == seq.end() && known.new_tokens == seq.new_tokens && known.prompt_tokens == seq.prompt_tokens && known.target == target)
    return known.raised;
  std::int32_t below = target, from = fits(seq, target) ? target : seq.end();
  while (from - below > 1) {
    const std::int32_t middle = below + (from - below) / 2;
    (fits(seq, middle) ? from : below) = middle;
  }
  known = {seq.end(), seq.new_tokens, seq.prompt_tokens, target, from};
  return from;
}

std::optional<std::int32_t> KvPolicy::target(const SeqStep& seq, const Held& held) const {
  const std::optional<std::int32_t> asked = parts_.trigger->target(seq, held, recipe_.budget);
  if (!asked) return asked;
  const std::int32_t tokens = raised(seq, *asked);
  return tokens > *asked && !held.exceeds(tokens) ? std::nullopt : std::optional(tokens);
}

std::int64_t KvPolicy::most_tokens(const SeqStep& seq) const {
  if (prunes() && seq.end() >= seq.prompt_tokens) {
    const SeqStep whole{seq.index, 0, seq.prompt_tokens, seq.prompt_tokens, seq.question_begin};
    std::int64_t tokens = 0;
    for (std::int32_t l = 0; l < model_.num_layers; ++l) tokens += step_tokens(whole, l) + seq.end() - seq.prompt_tokens;
    return tokens * model_.kv_heads;
  }
  const std::optional<Trigger::Bound> bound = parts_.disposal->shrinks() ? parts_.trigger->bound(seq, recipe_.budget) : std::nullopt;
  if (!bound) return std::int64_t{model_.num_layers} * model_.kv_heads * seq.end();
  SeqStep cut = seq;
  if (bound->end < seq.end()) cut = {seq.index, 0, bound->end, bound->end, seq.question_begin};
  const bool rounds = recipe_.peer_ties || parts_.allocator->rounds_for_model();
  const std::int32_t more = rounds && recipe_.budget.tokens == 0 ? 1 : 0;
  const std::int32_t tokens = raised(cut, bound->tokens);
  std::int64_t all = 0;
  for (std::int32_t l = 0; l < model_.num_layers; ++l)
    for (std::int32_t h = 0; h < model_.kv_heads; ++h) {
      const std::int32_t share = tokens < bound->end ? parts_.allocator->expected(model_, l, h, tokens, bound->end) : bound->end;
      all += std::min(share + more + bound->grown, seq.end());
    }
  return all;
}

// "" or why.
std::string KvPolicy::why_small_budget(const SeqStep& seq) const {
  if (!recipe_.has_budget || !parts_.scorer || recipe_.peer_ties) return "";  // peers cut protected tokens too
  const std::optional<std::int32_t> target = parts_.trigger->target(seq, seq.end(), recipe_.budget);
  if (!target) return "";
  const std::int32_t budget = recipe_.budget.of(seq.prompt_tokens);
  const Least least = least_share(*target, parts_.trigger->full(seq, recipe_.budget), seq.end());
  const Ends ends =
      protected_ends(parts_.scorer->protects(), parts_.trigger->protects(seq), std::min(budget, seq.prompt_tokens), least.tokens);
  const std::string unit = parts_.trigger->refuses_budget(budget);
  if (std::min<std::int64_t>(std::int64_t{ends.first} + ends.last, seq.end()) <= least.tokens && unit.empty()) return "";
  std::string what = fmt::format("a budget of {} tokens", budget);
  if (recipe_.budget.tokens == 0) what += fmt::format(", {} of the prompt's {},", recipe_.budget.frac, seq.prompt_tokens);
  const char* const comma = what.back() == ',' ? "" : ",";
  if (!unit.empty()) return what + " " + unit;
  if (least.tokens != *target) {
    what += fmt::format("{} of which allocator '{}' leaves layer {} {},", comma, recipe_.allocator, least.layer, least.tokens);
  } else if (*target != budget) {
    what += fmt::format("{} of which a cut leaves {},", comma, *target);
  }
  return fmt::format("{} is below {} that it always keeps", what, describe(ends));
}

// Protected scores become +infinity in rows that keep `kept` [num_rows]; of a protected share at most `kept`, first tokens first.
// peer_ties: the layer's largest other score + 1.
void KvPolicy::protect(const LayerStep& view, const std::int32_t* kept, float* scores) const {
  std::int32_t* from = view.ops.host_ints(view.kv.num_rows);
  std::int32_t* before = view.ops.host_ints(view.kv.num_rows);
  const Protected by_scorer = parts_.scorer->protects();
  bool any = false;
  const std::int32_t of_one = recipe_.peer_ties ? view.kv.kv_heads : 1;  // rows per entry of `before` and `from`
  for (std::int32_t r = 0; r < view.kv.num_rows; ++r) {
    const SeqStep& seq = view.seqs[static_cast<std::size_t>(view.kv.sequence(r))];
    const Protected by_trigger = parts_.trigger->protects(seq);
    Ends ends = protected_ends(by_scorer, by_trigger, seq.prompt_tokens, kept[r]);
    if (protects_share_) ends.last = std::clamp(kept[r] - std::max(by_scorer.sinks, by_trigger.sinks), 0, ends.last);
    from[r / of_one] = seq.end() - ends.last;
    before[r / of_one] = ends.first;
    any |= ends.first > 0 || ends.last > 0;
  }
  const bool above_max =
      recipe_.peer_ties && parts_.allocator->scope() != Allocator::Scope::kModel;  // layers differ in their largest score
  Protect protect{view.kv, before, from, scores, false, above_max};
  if (!recipe_.peer_ties) protect.kv.kv_heads = 1;  // per row
  if (any) view.ops(protect);
}

// [kv.total()]; if protection depends on `kept`, a copy.
float* KvPolicy::with_protected(const LayerStep& view, const std::int32_t* kept, float* scores) const {
  if (!protects_share_) return scores;
  float* copy = view.ops.floats(view.kv.total());
  view.ops(ScoreMap{view.kv.num_rows, view.kv.first, ScoreMap::Kind::kPlus, scores, 1.0F, 0.0F, false, nullptr, nullptr, copy});
  protect(view, kept, copy);
  return copy;
}

// [num_rows] For rows that keep fewer tokens than are protected: end of the first tokens, after which newer ones win; else the length.
// null: no such row.
const std::int32_t* KvPolicy::crowded(const LayerStep& view, const std::int32_t* kept) const {
  if (protects_share_ || recipe_.peer_ties) return nullptr;
  std::int32_t* begin = view.ops.host_ints(view.kv.num_rows);
  const Protected a = parts_.scorer->protects();
  bool any = false;
  for (std::int32_t r = 0; r < view.kv.num_rows; ++r) {
    const SeqStep& seq = view.seqs[static_cast<std::size_t>(view.kv.sequence(r))];
    const Protected b = parts_.trigger->protects(seq);
    const Ends ends = protected_ends(a, b, 0, kept[r]);
    const std::int32_t n = view.kv.len[r];
    const bool has_gaps = a.prompt || b.prompt || a.before > 0 || b.before > 0;  // positions may be missing
    const bool is_crowded = !has_gaps && kept[r] < n && kept[r] < ends.first + ends.last;
    begin[r] = is_crowded ? std::min(ends.first, n) : n;
    any |= is_crowded;
  }
  return any ? begin : nullptr;
}

}  // namespace kvlab
