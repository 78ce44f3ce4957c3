#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/attention/attend/attend.h"
#include "kernels/model/rope/rotary.h"
#include "kernels/ops.h"
#include "policies/kv/cache/kv_store.h"
#include "policies/kv/policy/policy.h"
#include "traces/attention_trace.h"

namespace kvlab {

// Full-cache decode, in a policy's kernel and step order, so keeping everything agrees bit for bit.
struct AttentionReference {
  std::int32_t num_steps = 0;  // prompt_tokens .. num_tokens - 1

  // Per (layer, step): [q_heads, tokens], [q_heads, head_dim], most attended positions [q_heads, min(top_k, tokens)].
  struct Step {
    std::int32_t tokens = 0;
    std::vector<float> probability, output;
    std::vector<std::int32_t> top;
  };
  std::vector<Step> steps;  // [num_layers * num_steps]
  [[nodiscard]] const Step& at(std::int32_t layer, std::int32_t step) const {
    return steps[static_cast<std::size_t>(layer) * static_cast<std::size_t>(num_steps) + static_cast<std::size_t>(step)];
  }
};

AttentionReference full_attention(const AttentionTrace& trace, std::int32_t top_k = 32);

// One step and layer, mean over query heads.
struct Fidelity {
  double attention_mass = 0;  // on attended tokens
  double output_rel_err = 0;  // |o - o_full| / |o_full|
  double topk_recall = 0;     // of the most attended tokens
  double kl = 0;              // KL(policy || full) in nats, common tokens
  double needle = 0;          // share attended to; 1 without
  double attended_tokens = 0;
  // Attention on far tokens (not the first 4 or last 64) and its part on attended ones; the same for needles. Shares are ratios of means.
  double far_mass = 0, far_mass_kept = 0, needle_mass = 0, needle_mass_kept = 0;
  [[nodiscard]] double far_share() const { return far_mass > 0 ? far_mass_kept / far_mass : 1; }
  [[nodiscard]] double needle_mass_share() const { return needle_mass > 0 ? needle_mass_kept / needle_mass : 1; }
  Fidelity& operator+=(const Fidelity& o);
  Fidelity& operator*=(double factor);
};

struct KeptAtStep {
  std::int32_t step = 0;                        // with this one
  std::vector<std::vector<std::int32_t>> rows;  // [num_layers * kv_heads], ascending
};

struct ReplayResult {
  Fidelity mean;                   // over steps, layers, heads
  std::vector<Fidelity> by_layer;  // [num_layers]
  std::vector<Fidelity> by_head;   // [num_layers * kv_heads]
  std::vector<Fidelity> by_step;   // [num_steps]
  double kept_tokens = 0;          // per layer and KV head, after the prompt
  std::int32_t budget_tokens = 0;  // the prompt's length without budget
  bool exceeds_budget = false;
  double resident_bytes_frac = 0;  // GPU, over the full cache's, mean over steps
  double host_bytes_frac = 0, disk_bytes_frac = 0;
  double peak_prefill_frac = 0;  // over the full prompt's
  Traffic traffic;
  std::int32_t num_steps = 0;
  // Prefill selector; means over queries, query heads and layers.
  struct Prompt {
    double mass = 0;            // on chosen keys
    double output_rel_err = 0;  // |o - o_full| / |o_full|
    double pairs_frac = 0;      // of causal pairs
  };
  std::optional<Prompt> prompt;
  std::vector<TierBytes> resident;              // after each step and prefill chunk
  std::vector<std::vector<std::int32_t>> kept;  // [num_layers * kv_heads] final positions
  // [num_layers * kv_heads] ascending, with options.lists_kept.
  std::vector<std::vector<std::int32_t>> kept_of_prompt;
  std::vector<KeptAtStep> kept_of_steps;  // with options.lists_kept_steps
};

struct ReplayOptions {
  std::uint64_t seed = 1;
  std::uint64_t draws = 0;
  std::int32_t kv_bytes = 2;  // per uncompressed element
  Ops* ops = nullptr;         // may be null
  CountSource* counts = nullptr;
  bool lists_kept = false;
  bool lists_kept_steps = false;
};

// Throws InputError if the recipe does not claim this host, fit these sizes, or needs what the trace lacks.
ReplayResult replay(const AttentionTrace& trace, const AttentionReference& reference, const Recipe& recipe,
                    const ReplayOptions& options = {});

// One KV head and decode step.
struct AttendedRow {
  const std::vector<Segment>& segments;
  std::int32_t row = 0;
  const float* probability = nullptr;  // [group, tokens of all segments]
  const float* output = nullptr;       // [q_heads, head_dim]
};

// Mean over its query heads. Tokens that represent others (with log-weight) count in the output only, not in mass, recall and KL.
Fidelity fidelity_of_row(const AttendedRow& attended, const AttentionReference::Step& full, const ModelShape& model,
                         const std::vector<std::pair<std::int32_t, std::int32_t>>& needles);

// In each step that looks at needles (at least half as much as the most, means over heads and layers), at least half of the full cache's
// attention on needles is on attended tokens.
bool finds_needles(std::span<const Fidelity> steps);

// By rope_base and rope_scaling. Throws InputError if unsupported, missing or invalid.
RopeForm rope_of(const AttentionTrace& trace);

// Throws InputError if pre-RoPE queries do not rotate into the trace's queries.
void check_rotation(const AttentionTrace& trace, const RopeForm& rope);

// kv_bytes: per uncompressed element.
ModelShape shape_of(const AttentionTrace& trace, std::int32_t kv_bytes);

// Throws InputError if the trace lacks them.
void check_needs(const Needs& needs, const AttentionTrace& trace, const std::string& recipe);

class TraceObserver final : public Observer {
 public:
  TraceObserver(const AttentionTrace& trace, const Needs& needs);
  // For the next observe().
  void set_step(const SeqStep& seq) { seq_ = seq; }
  Observed observe(std::int32_t layer) override;

 private:
  [[nodiscard]] Queries slice(const std::vector<float>& q, std::int32_t begin, std::int32_t end) const;

  const AttentionTrace& trace_;
  Needs needs_;
  SeqStep seq_;
  Queries step_, window_, pre_rope_queries_, future_;
  const float* pre_rope_keys_ = nullptr;
  const float *hidden_ = nullptr, *hidden_before_ = nullptr;
  const std::int32_t* ids_ = nullptr;
  std::vector<PassQueries> pass_;
  std::span<const PassQueries> pass_span_;
};

}  // namespace kvlab
