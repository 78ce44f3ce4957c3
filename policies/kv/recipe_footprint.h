#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <vector>

#include "policies/kv/expected_run.h"
#include "policies/kv/footprint.h"
#include "policies/kv/shape_run.h"
#include "policies/kv/step_ops.h"
#include "policies/kv/unpack_ops.h"

namespace kvlab {

// How a recipe's KV fills the blocks of a pool.
struct RecipePages {
  // GPU bytes that a token takes over all layers and KV heads while nothing is evicted and no residual window weighs in: packed K and
  // V and what parts keep per token. A block of the pool has room for block_tokens of these.
  double token_bytes = 0;
  std::int32_t block_tokens = 16;
  double host_token_bytes = 0, disk_token_bytes = 0;  // the same in CPU memory and on disk
};
// Errors as ShapeRun's.
RecipePages recipe_pages(const Recipe& recipe, const ModelShape& model, std::int32_t block_tokens);

// A recipe's memory and operations in serving, from its parts run on shapes: nothing here depends on the method. Decode steps come from
// StepOps, steps with prompt tokens from the parts themselves. Data-dependent allocators keep their mean; other counts that depend on data
// are at their bounds. With KvReads::kUnpacked a decode step also unpacks each sequence whose blocks are not hashed; sequences that evict
// in decode are assumed to stay decoded from their first eviction on.
class RecipeFootprint final : public Footprint {
 public:
  // Errors as ShapeRun's; recipes whose questions or extra passes cannot be known from lengths are refused. `at_rest`: where the profile
  // has the whole of unpacking (UnpackOps), "": nowhere. least_token_bytes: GPU memory per token of a block where CPU memory or disk limits
  // the number of blocks; RecipePages::token_bytes where that is more.
  RecipeFootprint(const Recipe& recipe, const ModelShape& model, std::int32_t block_tokens, KvReads reads = KvReads::kStored,
                  std::string at_rest = "", double least_token_bytes = 0);

  FootprintStep step(const SeqState& seq) override;
  void charge(std::span<SeqState> batch, PolicyWork& work) override;
  // Unpacking adds up in fractions of bytes, and is not looked ahead at.
  [[nodiscard]] bool looks_ahead() const override { return unpacking_ == nullptr; }
  std::int64_t decode_run(const SeqState& seq, std::int64_t most, std::vector<FootprintStep>& steps) override;
  void charge_ahead(std::span<const SeqState> batch, std::span<const std::vector<FootprintStep>> runs, std::int64_t steps,
                    DecodeAhead& ahead) override;
  std::int64_t pages_at_end(std::int32_t prompt_tokens, std::int32_t seen_tokens) override;
  [[nodiscard]] bool shares_prefixes() const override { return shapes_.policy().shares_prefixes(); }
  [[nodiscard]] std::int32_t fresh_tokens() const override { return shapes_.policy().fresh_tokens(); }
  [[nodiscard]] bool exceeds_budget(std::int32_t prompt_tokens) const override { return shapes_.policy().exceeds_budget(prompt_tokens); }
  [[nodiscard]] bool unnamed_rest() const override { return unpacking_ && shapes_.policy().may_rest(); }
  [[nodiscard]] OnPreempt on_preempt() const override {
    return recipe_.on_preempt == Recipe::OnPreempt::kSwap ? OnPreempt::kSwap : OnPreempt::kRecomputeChunked;
  }

  // The sequence as the parts see it.
  [[nodiscard]] ShapeRun::Seq shape_of(const SeqState& seq) const;

 private:
  [[nodiscard]] bool ends_prompt(const SeqState& seq) const;
  FootprintStep run(const SeqState& seq);
  FootprintStep grow(const SeqState& seq);
  void finish(const SeqState& seq, std::int64_t gpu, FootprintStep& done);
  [[nodiscard]] static bool decodes(const SeqState& seq) {
    return seq.new_tokens == 1 && seq.seen_tokens >= seq.prompt_tokens && !seq.recomputes;
  }
  // The trigger's target in a decode step: ShapeRun::kNoCut, kLayersDiffer or tokens.
  [[nodiscard]] std::int32_t target_of(const SeqState& seq) const;
  [[nodiscard]] bool only_grows(const SeqState& seq) const;
  [[nodiscard]] StepKey key_of(const SeqState& seq) const;
  FootprintStep decode_step(const SeqState& seq);
  void fill_shape(const SeqState& seq, ShapeRun::Seq& shape) const;
  void use_layers(bool all);
  void expand(ShapeRun::Result& result) const;
  [[nodiscard]] bool is_cut(const ShapeRun::Seq& seq, const ShapeRun::Result& done) const;
  [[nodiscard]] std::int64_t side_pages(std::int32_t tokens);
  [[nodiscard]] std::int64_t untouched_bytes(std::int32_t tokens);
  [[nodiscard]] std::int64_t layer_pages(std::int64_t gpu_bytes, std::span<const std::int32_t> len) const;
  [[nodiscard]] bool has_whole_rows(const SeqState& seq) const;
  void note_held(std::span<const std::int32_t> held, std::int32_t end, FootprintStep& done);
  void charge_prompts(std::span<SeqState> batch, PolicyWork& work);
  void add_pruned(const ShapeRun::Seq& shape, std::size_t place, PolicyWork& work) const;
  void charge_decodes(std::span<SeqState> batch, PolicyWork& work);
  void unpack(const SeqState& seq, const ShapeRun::Seq& shape);
  [[nodiscard]] std::int32_t attended(const StepOps::Read& all) const;
  void add_decodes(const LayerCalls& calls, std::vector<PolicyOp>& ops) const;
  void add_passes(std::span<const PassShape> chunks, std::int32_t kv_tokens, PolicyWork& work) const;
  std::int64_t most_pages(SeqState seq, std::int32_t seen_tokens);

  Recipe recipe_;
  ModelShape model_;
  std::unique_ptr<Trigger> trigger_;
  ExpectedRun expected_;
  ShapeRun& shapes_;  // of expected_
  StepOps decodes_;
  RecipePages pages_;
  double page_bytes_ = 0;
  KvReads reads_ = KvReads::kStored;
  std::unique_ptr<UnpackOps> unpacking_;  // null: nothing is packed between steps
  KvPolicy::LayerKinds kinds_;            // of steps that compute prompts
  std::vector<std::int64_t> times_;       // [kinds] layers of each
  bool uses_all_ = true;                  // layers, in shapes_
  bool shares_layers_ = false;            // the allocator comes back to earlier layers
  bool merges_alone_ = false;             // the disposal acts without a trigger: tokens stay and take less memory
  bool may_cut_ = false;                  // whenever the trigger acts: data decides how many tokens stay
  std::vector<std::int64_t> side_bytes_;  // [i]: the most that up to 16 * (i + 1) tokens take beyond token_bytes each
  static constexpr std::int32_t kWhole = -1 << 30;
  // The tokens of each row minus those of the first row that lost something; kWhole for whole rows, so that a pattern lasts while these
  // grow and others are cut. Pattern 0: all rows hold the same.
  struct Pattern {
    std::vector<std::int32_t> held;
    bool has_whole = false;
  };
  std::vector<Pattern> patterns_{1};
  std::map<std::vector<std::int32_t>, std::int32_t> pattern_ids_;
  std::unordered_map<StepKey, FootprintStep, StepKey::Hash> known_;  // steps with prompt tokens
  // Results of decode steps whose keys differ in the tokens held alone, side by side.
  static constexpr std::int32_t kChunk = 16;
  struct Chunk {
    std::uint32_t known = 0;  // bits
    std::array<FootprintStep, kChunk> steps;
  };
  // A sequence's key from the step on before which it had seen `seen` tokens, until another part of the key than held tokens changes. It
  // holds while the sequence gains a token in each step, or none.
  struct Trail {
    std::int32_t prompt = -1, state = 0, seen = 0, held = 0;
    std::int64_t until = 0;  // seen tokens
    StepKey key;             // its last number is the chunk's
    std::int32_t chunk_index = -1;
    Chunk* chunk = nullptr;
    [[nodiscard]] bool holds(const SeqState& seq, std::int32_t its_state) const {
      return prompt == seq.prompt_tokens && state == its_state && seq.seen_tokens >= seen && seq.seen_tokens < until &&
             (seq.held_tokens - held == seq.seen_tokens - seen || (seq.held_tokens == held && held < seen));
    }
  };
  Trail& trail_of(const SeqState& seq);
  FootprintStep step_on(Trail& trail, const SeqState& seq);
  std::unordered_map<StepKey, std::unique_ptr<Chunk>, StepKey::Hash> chunks_;
  static constexpr std::size_t kTrails = 512;
  std::vector<Trail> trails_ = std::vector<Trail>(kTrails);  // by hashes of the prompt and of the tokens held, or lost
  std::vector<StepOps::Walk> walks_;                         // of a batch
  struct Recent {
    std::array<std::int32_t, 6> state{-1};
    FootprintStep done;
  };
  std::vector<Recent> recent_{1024};  // by a hash of the whole state
};

}  // namespace kvlab
