#pragma once

#include <string>
#include <vector>

#include "kernels/model/rope/rotary.h"
#include "policies/kv/policy/policy.h"
#include "traces/attention_trace.h"

namespace kvlab {

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
