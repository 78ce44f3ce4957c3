#pragma once

#include <cstdint>
#include <span>

#include "kernels/kv_rows.h"
#include "kernels/model/rope/rotary.h"
#include "kernels/ops.h"
#include "kernels/select/guess_queries/guess_queries.h"
#include "policies/kv/cache/kv_keeper.h"

namespace kvlab {

struct ModelShape {
  std::int32_t num_layers = 0, q_heads = 0, kv_heads = 0, head_dim = 0, hidden_dim = 0;
  std::int32_t kv_bytes = 2;  // per element
  RopeForm rope = {};
  [[nodiscard]] std::int32_t group() const { return q_heads / kv_heads; }
};

struct SeqStep {
  std::int32_t index = 0;
  std::int32_t seen_tokens = 0;  // before this step, kept or not
  std::int32_t new_tokens = 0;
  std::int32_t prompt_tokens = 0;
  std::int32_t question_begin = -1;  // position in the prompt; -1: unknown
  std::uint64_t draws = 0;           // random key, equal at every batch index
  [[nodiscard]] std::int32_t end() const { return seen_tokens + new_tokens; }
  [[nodiscard]] bool decoding() const { return seen_tokens >= prompt_tokens; }
  [[nodiscard]] bool completes_prompt() const { return !decoding() && end() >= prompt_tokens; }
};

// From Needs, in one layer; spans are per sequence. On shapes only counts and positions are valid.
struct Observed {
  std::span<const Queries> step;  // [count, q_heads, head_dim]
  std::span<const Queries> window;
  std::span<const Queries> pre_rope_queries;    // positions [0, prompt_tokens)
  std::span<const float* const> pre_rope_keys;  // [end, kv_heads, head_dim] by position
  std::span<const Queries> future;
  std::span<const float* const> hidden;         // [new_tokens, hidden_dim]
  std::span<const float* const> hidden_before;  // decode: the previous layer's; empty in layer 0
  std::span<const std::int32_t* const> ids;     // [end]
  const float* w_o = nullptr;                   // [hidden_dim, q_heads * head_dim]
  QueryWeights w_q;
  std::span<const std::span<const PassQueries>> pass;
};

class Observer {
 public:
  virtual ~Observer() = default;
  virtual Observed observe(std::int32_t layer) = 0;  // valid until the step ends
};

// Ascending tokens per row; index null: all or none, as the user states.
struct Selection {
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  const std::int32_t* index = nullptr;
};

class TensorMemory;
template <class Op>
class DecodeOpOf;  // kernels/storage/stored/stored_code.h

// For sequences that take part.
struct LayerStep {
  Ops& ops;
  const ModelShape& model;
  std::int32_t layer = 0;
  std::span<const SeqStep> seqs;  // seqs[kv.sequence(row)]
  KvRows kv;                      // with this step's tokens
  Observed in;
  std::uint64_t seed = 0;
  const TensorMemory* tensors = nullptr;  // null: CPU memory
  KvKeeper* keeper = nullptr;             // null: not recorded
  Selection exact = {};                   // tokens that Format::store leaves as they are

  [[nodiscard]] const TensorMemory& memory() const;
  // From lower tiers into the rows.
  void fetch(const Selection& selection) const {
    if (keeper != nullptr) keeper->fetch(*this, selection);
  }
  template <class Op>
  void decode(const Op& op) const {
    ops(op);
    if (keeper != nullptr) keeper->keep(*this, DecodeOpOf<Op>(op));
  }
};

struct Budget {
  std::int32_t tokens = 0;  // 0: not given
  double frac = 0;          // share of the prompt; 0: not given
  bool truncates = true;    // frac * n rounds down, else half to even
  double dropped = -1;      // of the prompt, as given; < 0: 1 - frac
  [[nodiscard]] double dropped_frac() const { return dropped < 0 ? 1 - frac : dropped; }
  // Tokens per KV head; >= 1 for a share.
  [[nodiscard]] std::int32_t of(std::int32_t prompt_tokens) const;
};

// Never evicted.
struct Protected {
  std::int32_t sinks = 0, recent = 0;
  bool prompt = false;      // all that is left of the prompt
  double recent_frac = 0;   // share of a row's kept tokens added to `recent`, rounded down
  std::int32_t before = 0;  // all that is left before this position
  [[nodiscard]] std::int32_t recent_of(std::int32_t kept_tokens) const {
    return recent + static_cast<std::int32_t>(recent_frac * kept_tokens);
  }
};

}  // namespace kvlab
