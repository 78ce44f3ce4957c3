#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policies/kv/part.h"

namespace kvlab {

// Attention reads packed tokens as codes; as K and V decoded between steps, or in each step.
enum class KvReads : std::uint8_t { kStored, kDecoded, kUnpacked };

// Before a step.
struct SeqState {
  std::int32_t seen_tokens = 0;  // kept or not
  std::int32_t prompt_tokens = 0;
  std::int32_t held_tokens = 0;  // in the first row (layer, KV head) that evicted; others: `pattern`
  std::int32_t pattern = 0;      // id per footprint; 0: equal rows
  bool left_hashed = false;      // private pages
  bool recomputes = false;
  bool is_named = false;  // blocks are hashed
  std::int32_t new_tokens = 0;
  // Set by charge(): mean cached tokens per row in the model's KV type, without the new one.
  std::int32_t attended_tokens = 0;

  [[nodiscard]] SeqState taking(std::int32_t tokens) const {
    SeqState seq = *this;
    seq.new_tokens = tokens;
    return seq;
  }
};

// In pages per layer and KV head.
struct FootprintStep {
  std::int64_t peak_pages = 0;                // private; reserved before the step
  std::int64_t kept_pages = 0;                // private, after it
  std::int32_t kept_tokens = 0;               // block tokens in kept_pages, if evicted
  std::int32_t held_tokens = 0, pattern = 0;  // after it
  // First eviction: all pages become private and unhashed; the step counts old blocks and new pages. Before it, private pages (residual
  // windows) exist next to blocks. kept_pages above peak_pages: tokens rewritten in place replace the blocks.
  bool leaves_hashed = false;
  // For recomputed sequences.
  bool ends_prompt = false;

  [[nodiscard]] SeqState after(SeqState seq) const {
    seq.seen_tokens += seq.new_tokens;
    seq.left_hashed |= leaves_hashed;
    seq.held_tokens = seq.left_hashed ? held_tokens : seq.seen_tokens;
    seq.pattern = seq.left_hashed ? pattern : 0;
    return seq;
  }
};

// Over all layers and KV heads.
struct PolicyOp {
  std::string_view name;      // folder of kernels/, or own name
  std::int64_t launches = 0;  // batched calls
  std::int64_t bytes = 0, flops = 0;
  bool over_host_link = false;  // from CPU memory
  bool from_disk = false;
  FetchBeside beside = FetchBeside::kNothing;
  [[nodiscard]] bool is_transfer() const { return over_host_link || from_disk; }
};

struct ForwardPass {
  std::int32_t new_tokens = 0, kv_tokens = 0;
  std::int32_t layers = 0;  // 0: all
};

// Some layers compute a part.
struct PrunedPrompt {
  std::size_t place = 0;             // index in charge()'s batch or a step's entries
  std::vector<std::int32_t> tokens;  // [layers]
};

struct PolicyWork {
  std::vector<PolicyOp> ops;
  std::vector<ForwardPass> passes;
  std::vector<PrunedPrompt> pruned;
  std::int32_t sparse_layers = 0;  // prompt attention is in `ops`
  void clear() { ops.clear(), passes.clear(), pruned.clear(), sparse_layers = 0; }
  [[nodiscard]] bool empty() const { return ops.empty() && passes.empty() && pruned.empty(); }
};

struct DecodeAhead {
  std::vector<std::vector<PolicyOp>> ops;           // [steps]
  std::vector<std::vector<std::int32_t>> attended;  // [steps][batch] SeqState::attended_tokens
  [[nodiscard]] std::int64_t steps() const { return std::ssize(ops); }
};

// From sizes only. Equal arguments give equal results; the pool relies on it.
class Footprint {
 public:
  virtual ~Footprint() = default;
  virtual FootprintStep step(const SeqState& seq) = 0;
  // Sets attended_tokens; appends to `work`.
  virtual void charge(std::span<SeqState> batch, PolicyWork& work) = 0;
  // Upper bound, for a prompt computed in one step.
  virtual std::int64_t pages_at_end(std::int32_t prompt_tokens, std::int32_t seen_tokens) = 0;
  // True: plain blocks, no evictions or charges.
  [[nodiscard]] virtual bool keeps_everything() const { return false; }
  // True: decode steps change neither private pages nor charges.
  [[nodiscard]] virtual bool is_steady_in_decode() const { return keeps_everything(); }
  // True: decode_run() and charge_ahead() work.
  [[nodiscard]] virtual bool looks_ahead() const { return false; }
  // Appends at most `most` decode steps to those before, until rows are first cut or kept pages decrease. Returns their number.
  virtual std::int64_t decode_run(const SeqState& /*seq*/, std::int64_t /*most*/, std::vector<FootprintStep>& /*steps*/) { return 0; }
  // `runs` [batch][>= steps]: results of decode_run().
  virtual void charge_ahead(std::span<const SeqState> /*batch*/, std::span<const std::span<const FootprintStep>> /*runs*/,
                            std::int64_t /*steps*/, DecodeAhead& /*ahead*/) {}
  // True: without evictions, layers that keep less have private copies of tokens in blocks. Pages above peak_pages are freed before the
  // step.
  [[nodiscard]] virtual bool returns_pages() const { return false; }
  [[nodiscard]] virtual bool shares_prefixes() const { return true; }
  // Last prompt tokens to compute although cached.
  [[nodiscard]] virtual std::int32_t fresh_tokens() const { return 1; }
  // True: more than the budget always stays of such a prompt.
  [[nodiscard]] virtual bool exceeds_budget(std::int32_t /*prompt_tokens*/) const { return false; }
  // True: unhashed tokens cannot be found after preemption.
  [[nodiscard]] virtual bool unnamed_rest() const { return false; }
  // Rows of a pattern id, and the reverse. Ids are per footprint; `rows` come from the same policy and model. Empty: equal rows.
  [[nodiscard]] virtual std::vector<std::int32_t> rows_of(std::int32_t /*pattern*/) const { return {}; }
  virtual std::int32_t pattern_of(const std::vector<std::int32_t>& /*rows*/) { return 0; }
  // Replaces the scheduler's mode for sequences with private pages.
  enum class OnPreempt : std::uint8_t { kSwap, kRecomputeChunked };
  [[nodiscard]] virtual OnPreempt on_preempt() const { return OnPreempt::kSwap; }
};

// Plain paged KV.
class KeepAll final : public Footprint {
 public:
  FootprintStep step(const SeqState& seq) override { return {0, 0, 0, seq.seen_tokens + seq.new_tokens, 0, false}; }
  void charge(std::span<SeqState> batch, PolicyWork&) override {
    for (SeqState& seq : batch) seq.attended_tokens = seq.seen_tokens;
  }
  std::int64_t pages_at_end(std::int32_t, std::int32_t) override { return 0; }
  [[nodiscard]] bool keeps_everything() const override { return true; }
};

}  // namespace kvlab
