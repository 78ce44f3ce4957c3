#include <fmt/format.h>

#include <algorithm>

#include "kernels/select/unit_lists_op.h"
#include "kernels/storage/evict_rows_op.h"
#include "policies/kv/policy/acting.h"
#include "policies/kv/policy/policy.h"

namespace kvlab {

namespace {

bool leaves_no_gaps(const Protected& stay) { return !stay.prompt && stay.before == 0; }

// After the sinks, the window is a ring buffer from the prompt's end, or from when it is full.
std::int32_t place_of_oldest(const SeqStep& seq, std::int32_t sinks, std::int32_t window, std::int32_t oldest) {
  if (window == 0) return sinks;
  const std::int32_t begin = std::max(sinks, seq.prompt_tokens - window);
  return sinks + std::max(0, oldest - begin) % window;
}

}  // namespace

bool KvPolicy::goes_by_position(const Acting& acting) const {
  if (!in_place_ || !parts_.scorer->keeps_latest()) return false;
  if (parts_.allocator->reads_scores() || !leaves_no_gaps(parts_.scorer->protects())) return false;
  return std::all_of(acting.seqs.begin(), acting.seqs.end(),
                     [&](const SeqStep& seq) { return seq.decoding() && leaves_no_gaps(parts_.trigger->protects(seq)); });
}

// At most one token if the disposal depends on order across heads.
bool KvPolicy::evicts_few(const LayerStep& view, const std::int32_t* keep) const {
  if (!in_place_ || !all_decode(view.seqs)) return false;
  const std::int32_t most = parts_.disposal->only_drops() ? EvictRows::kMost : 1;
  for (std::int32_t r = 0; r < view.kv.num_rows; ++r)
    if (view.kv.len[r] - keep[r] > most) return false;
  return true;
}

// False: a row keeps fewer tokens than its sinks.
bool KvPolicy::evict_oldest(LayerStep& view, const std::int32_t* keep) {
  const KvRows& kv = view.kv;
  std::int32_t *from = view.ops.host_ints(kv.num_rows), *guess = view.ops.host_ints(kv.num_rows);
  for (std::int32_t r = 0; r < kv.num_rows; ++r) {
    const SeqStep& seq = view.seqs[static_cast<std::size_t>(kv.sequence(r))];
    const std::int32_t sinks = std::max(parts_.scorer->protects().sinks, parts_.trigger->protects(seq).sinks);
    if (keep[r] < sinks) return false;
    from[r] = seq.end() - (kv.len[r] - sinks);
    guess[r] = place_of_oldest(seq, sinks, keep[r] - sinks, from[r]);
  }
  EvictRows op;
  op.choice = EvictRows::Choice::kPositions;
  op.from = from, op.guess = guess;
  evict_in_place(view, keep, op);
  return true;
}

void KvPolicy::evict_lowest(LayerStep& view, const std::int32_t* keep, const float* scores) {
  EvictRows op;
  op.scores = scores;
  evict_in_place(view, keep, op);
}

void KvPolicy::evict_in_place(LayerStep& view, const std::int32_t* keep, EvictRows op) {
  const KvRows& kv = view.kv;
  const std::int64_t* const kept_first = prefix_sums(view, [&](std::int32_t r) { return keep[r]; });
  const std::int64_t* const first = prefix_sums(view, [&](std::int32_t r) { return kv.len[r] - keep[r]; });
  op.kv = kv, op.first = first, op.dropped = view.ops.ints(first[kv.num_rows]);
  op.moves = parts_.disposal->only_drops();
  view.ops(op);
  if (op.moves) return;
  std::int32_t* const index = view.ops.ints(kept_first[kv.num_rows]);
  view.ops(CopyUnits{kv.num_rows, {first, op.dropped}, CopyUnits::Kind::kOthers, nullptr, kept_first, nullptr, index});
  parts_.disposal->let_go(view, {kept_first, index, keep});
  op.choice = EvictRows::Choice::kListed, op.moves = true;
  view.ops(op);
}

std::string why_compacts(const Recipe& r, const RecipeParts& parts) {
  const char* const ordered = "takes tokens in the order of their positions";
  const Disposal::Evicts evicts = parts.disposal->evicts();
  if (evicts == Disposal::Evicts::kOrdered) return fmt::format("disposal '{}' {}", r.disposal, ordered);
  if (evicts == Disposal::Evicts::kAsked) return fmt::format("disposal '{}' has 'in_place: false'", r.disposal);
  if (!parts.trigger->cuts_few()) return fmt::format("trigger '{}' drops many tokens at once", r.trigger);
  if (!parts.scorer->is_order_free({parts.allocator->is_uniform(), parts.trigger->unit()}))
    return fmt::format("scorer '{}' {}", r.scorer, ordered);
  if (parts.allocator->scope() == Allocator::Scope::kCascade)
    return fmt::format("allocator '{}' comes back to earlier layers", r.allocator);
  if (parts.format->encodes()) return fmt::format("format '{}' stores tokens in groups or in the order of their positions", r.format);
  if (!r.selects_all) return fmt::format("selector '{}' {}", r.selector, ordered);
  if (r.renumbers()) return "keys are renumbered in the order of their positions";
  if (r.prunes()) return fmt::format("{} '{}' {}", r.pruning_part(), r.rewrites() ? r.prompt_rewriter : r.prompt_pruner, ordered);
  if (r.peer_ties) return "ties are broken as a peer breaks them, by the tokens' order";
  return "";
}

std::string why_compacts(const Recipe& r) {
  const RecipeParts parts(r);
  if (parts.scorer == nullptr || !parts.trigger->in_decode() || !parts.disposal->shrinks()) return "";
  return why_compacts(r, parts);
}

}  // namespace kvlab
