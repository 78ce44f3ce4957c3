#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "policies/kv/policy.h"
#include "sim/replay/reference.h"
#include "traces/attention_trace.h"

namespace kvlab {

// How well attention with a policy agrees with the full cache, at one decode step of one layer, averaged over query heads or
// of one KV head.
struct Fidelity {
  double attention_mass = 0;  // share of the full cache's attention that falls on tokens attended to
  double output_rel_err = 0;  // |o - o_full| / |o_full|
  double topk_recall = 0;     // share of the most attended tokens that are attended to
  double kl = 0;              // KL(policy || full) in nats, over tokens that are in both
  double needle = 0;          // share of the needles' tokens attended to; 1 where the trace has none
  double attended_tokens = 0;
  // The full cache's attention on tokens that are far (neither among the first 4 nor the last 64), and how much of it falls on tokens
  // attended to; the same on the needles. Ratios of means, so that heads count by how much they look there.
  double far_mass = 0, far_mass_kept = 0, needle_mass = 0, needle_mass_kept = 0;
  [[nodiscard]] double far_share() const { return far_mass > 0 ? far_mass_kept / far_mass : 1; }
  [[nodiscard]] double needle_mass_share() const { return needle_mass > 0 ? needle_mass_kept / needle_mass : 1; }
  Fidelity& operator+=(const Fidelity& o);
  Fidelity& operator*=(double factor);
};

struct ReplayResult {
  Fidelity mean;                   // over steps, layers and heads
  std::vector<Fidelity> by_layer;  // [num_layers]
  std::vector<Fidelity> by_head;   // [num_layers * kv_heads]
  std::vector<Fidelity> by_step;   // [num_steps]
  double kept_tokens = 0;          // per layer and KV head, when the prompt is complete
  std::int32_t budget_tokens = 0;  // that the recipe was given; the prompt's length where it has none
  bool exceeds_budget = false;     // KvPolicy::exceeds_budget
  double resident_bytes_frac = 0;  // of GPU bytes, mean over decode steps, relative to the full cache at that step
  double host_bytes_frac = 0, disk_bytes_frac = 0;
  double peak_prefill_frac = 0;  // most GPU bytes while the prompt ran, relative to the full prompt's
  Traffic traffic;               // over all decode steps
  std::int32_t num_steps = 0;
  // Attention of the prompt's queries, where the recipe has a prefill selector; means over queries, query heads and layers.
  struct Prompt {
    double mass = 0;            // share of attention over all tokens that falls on the chosen keys
    double output_rel_err = 0;  // |o - o_full| / |o_full|
    double pairs_frac = 0;      // query-key pairs computed, of the causal ones
  };
  std::optional<Prompt> prompt;
  std::vector<TierBytes> resident;              // after each step, prefill chunks included
  std::vector<std::vector<std::int32_t>> kept;  // [num_layers * kv_heads] positions held at the end
  // [num_layers * kv_heads] positions held when the prompt is complete, ascending; empty unless options.lists_kept.
  std::vector<std::vector<std::int32_t>> kept_of_prompt;
};

struct ReplayOptions {
  std::uint64_t seed = 1;
  std::uint64_t draws = 0;        // names the sample's random draws
  std::int32_t kv_bytes = 2;      // of a stored element of the uncompressed cache
  Ops* ops = nullptr;             // a log to fill; null: none is kept
  CountSource* counts = nullptr;  // is shown the counts that depended on data, step by step
  bool lists_kept = false;        // fills ReplayResult::kept_of_prompt
};

// Runs a recipe over one recorded sample. Errors (InputError): the recipe does not claim this host, cannot run with these sizes, or
// observes what the trace does not have.
ReplayResult replay(const AttentionTrace& trace, const AttentionReference& reference, const Recipe& recipe,
                    const ReplayOptions& options = {});

}  // namespace kvlab
