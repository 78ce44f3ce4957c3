#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "policies/kv/cache/kv_keeper.h"
#include "policies/kv/footprint.h"
#include "sim/kv_cost/shape_run.h"
#include "sim/kv_cost/step_ops.h"

namespace kvlab {

// Unpacking and repacking in a decode step: one call per operation, layer and sequence. Decodes codes into pages and copies other tokens
// ("token_copy"). Encodes nothing; copies from CPU memory are not counted. Codes are as if all tokens had come with the prompt. `whole`:
// one measured operation per step, over bytes of packed K and V in the model's type.
class UnpackOps {
 public:
  // Errors as ShapeRun. whole: "" if not measured.
  UnpackOps(const Recipe& recipe, const ModelShape& model, std::string whole = "");

  [[nodiscard]] bool has_fetches() const { return !whole_.empty(); }

  // `held_tokens` of all layers and KV heads, in proportion to what the recipe leaves of a prompt.
  void add(std::int32_t prompt_tokens, std::int64_t held_tokens);
  void take(std::vector<PolicyOp>& ops);
  [[nodiscard]] std::int64_t runs() const { return runs_; }

 private:
  struct Unpacked {
    std::int64_t held_tokens = 0;
    std::vector<PolicyOp> ops;
  };
  struct Sum {
    std::string_view name;
    std::int64_t launches = 0;
    double bytes = 0, flops = 0;
  };
  // Per token held; launches in total.
  struct PerToken {
    bool is_known = false;
    std::vector<std::pair<std::size_t, Sum>> ops;
  };
  static constexpr std::int32_t kStep = 16;  // prompts are rounded up to it
  [[nodiscard]] PerToken run(std::int32_t prompt_tokens);
  [[nodiscard]] Unpacked run_codes(std::int32_t prompt_tokens);
  [[nodiscard]] Unpacked run_tiers(std::int32_t held_tokens);
  void add_copies(std::int64_t tokens, std::int64_t keys, std::int64_t values, Unpacked& to) const;

  ModelShape model_;
  std::string whole_;
  std::int64_t whole_bytes_ = 0;
  std::unique_ptr<Trigger> trigger_;
  Budget budget_;
  ExpectedCounts counts_;
  ShapeRun shapes_;  // not the footprint's, which must not see these prompts
  bool has_tiers_;
  std::vector<PerToken> known_;
  std::vector<Sum> sums_;
  std::int64_t runs_ = 0;
};

// Numbers the ways in which rows (KV heads of layers) differ in length. runs() and number_of() carry a pattern to another footprint.
class RowPatterns {
 public:
  static constexpr std::int32_t kAlike = 0;  // equal rows

  // tokens: the first row that lost some, or all.
  struct Rows {
    std::int32_t tokens = 0, pattern = kAlike;
  };
  // held [num_layers * kv_heads]; end: tokens seen.
  Rows note(std::span<const std::int32_t> held, std::int32_t end);
  // One value if equal.
  [[nodiscard]] std::vector<std::int32_t> lengths(const Rows& rows, std::int32_t seen) const;
  // Some rows lost nothing.
  [[nodiscard]] bool has_whole(std::int32_t pattern) const { return of(pattern).has_whole; }

  // Empty: kAlike.
  [[nodiscard]] const std::vector<std::int32_t>& runs(std::int32_t pattern) const { return of(pattern).runs; }
  std::int32_t number_of(const std::vector<std::int32_t>& runs);

 private:
  static constexpr std::int32_t kWhole = -1 << 30;
  // Tokens minus the first row's that lost some; kWhole for whole rows, so a pattern lasts as these grow.
  struct Pattern {
    std::vector<std::int32_t> runs;  // by runs_of(): one pattern per prompt length
    bool has_whole = false;
  };
  [[nodiscard]] const Pattern& of(std::int32_t pattern) const { return patterns_[static_cast<std::size_t>(pattern)]; }

  std::vector<Pattern> patterns_{1};
  std::map<std::vector<std::int32_t>, std::int32_t> numbers_;
};

struct RecipePages {
  // GPU bytes per token, all layers and KV heads, without eviction and residual windows: packed K, V and the parts' data. A block holds
  // block_tokens.
  double token_bytes = 0;
  std::int32_t block_tokens = 16;
  double host_token_bytes = 0, disk_token_bytes = 0;
};
// Errors as ShapeRun.
RecipePages recipe_pages(const Recipe& recipe, const ModelShape& model, std::int32_t block_tokens);

// Decode steps come from StepOps, prompt steps from the parts on shapes. Data-dependent allocators keep their mean; other counts are at
// their bounds.
class RecipeFootprint final : public Footprint {
 public:
  // Errors as ShapeRun; refuses questions and passes that lengths do not determine. at_rest: the profile's unpacking operation (UnpackOps),
  // "": none. least_token_bytes: GPU bytes per block token if CPU memory or disk limits blocks; >= RecipePages::token_bytes.
  RecipeFootprint(const Recipe& recipe, const ModelShape& model, std::int32_t block_tokens, KvReads reads = KvReads::kStored,
                  std::string at_rest = "", double least_token_bytes = 0);

  FootprintStep step(const SeqState& seq) override;
  void charge(std::span<SeqState> batch, PolicyWork& work) override;
  // Unpacking sums fractional bytes.
  [[nodiscard]] bool looks_ahead() const override { return unpacking_ == nullptr; }
  std::int64_t decode_run(const SeqState& seq, std::int64_t most, std::vector<FootprintStep>& steps) override;
  void charge_ahead(std::span<const SeqState> batch, std::span<const std::span<const FootprintStep>> runs, std::int64_t steps,
                    DecodeAhead& ahead) override;
  std::int64_t pages_at_end(std::int32_t prompt_tokens, std::int32_t seen_tokens) override;
  [[nodiscard]] bool shares_prefixes() const override { return shapes_.policy().shares_prefixes(); }
  [[nodiscard]] std::int32_t fresh_tokens() const override { return shapes_.policy().fresh_tokens(); }
  [[nodiscard]] bool exceeds_budget(std::int32_t prompt_tokens) const override { return shapes_.policy().exceeds_budget(prompt_tokens); }
  [[nodiscard]] bool unnamed_rest() const override { return unpacking_ && shapes_.policy().may_rest(); }
  [[nodiscard]] std::vector<std::int32_t> rows_of(std::int32_t pattern) const override { return patterns_.runs(pattern); }
  std::int32_t pattern_of(const std::vector<std::int32_t>& rows) override { return patterns_.number_of(rows); }
  [[nodiscard]] OnPreempt on_preempt() const override {
    return recipe_.on_preempt == Recipe::OnPreempt::kSwap ? OnPreempt::kSwap : OnPreempt::kRecomputeChunked;
  }

  [[nodiscard]] ShapeRun::Seq shape_of(const SeqState& seq) const;

 private:
  [[nodiscard]] bool ends_prompt(const SeqState& seq) const;
  FootprintStep run(const SeqState& seq);
  FootprintStep grow(const SeqState& seq);
  void finish(const SeqState& seq, std::int64_t gpu, FootprintStep& done);
  [[nodiscard]] static bool decodes(const SeqState& seq) {
    return seq.new_tokens == 1 && seq.seen_tokens >= seq.prompt_tokens && !seq.recomputes;
  }
  // ShapeRun::kNoCut, kLayersDiffer or tokens.
  [[nodiscard]] std::int32_t target_of(const SeqState& seq) const;
  [[nodiscard]] StepKey key_of(const SeqState& seq) const;
  void fill_shape(const SeqState& seq, ShapeRun::Seq& shape) const;
  void fill_walk(const SeqState& seq, StepOps::Walk& walk) const;
  void use_layers(bool all);
  void expand(ShapeRun::Result& result) const;
  [[nodiscard]] bool is_cut(const ShapeRun::Seq& seq, const ShapeRun::Result& done) const;
  [[nodiscard]] std::int64_t side_pages(std::int32_t tokens);
  [[nodiscard]] std::int64_t untouched_bytes(std::int32_t tokens);
  [[nodiscard]] std::int64_t layer_pages(std::int64_t gpu_bytes, std::span<const std::int32_t> len) const;
  struct LayerPages {
    std::int64_t now = 0, appended = 0, after = 0;
  };
  [[nodiscard]] LayerPages layer_pages(const ShapeRun::Seq& shape, const ShapeRun::Result& result, std::size_t layer) const;
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
  ShapeRun& shapes_;
  StepOps decodes_;
  RecipePages pages_;
  double page_bytes_ = 0;
  KvReads reads_ = KvReads::kStored;
  std::unique_ptr<UnpackOps> unpacking_;  // null: nothing packed
  KvPolicy::LayerKinds kinds_;            // with prompt tokens
  std::vector<std::int64_t> times_;       // [kinds] layers
  bool uses_all_ = true;                  // all layers run
  bool shares_layers_ = false;            // revisits earlier layers
  bool merges_alone_ = false;             // disposal without trigger: tokens stay and shrink
  bool sums_by_shape_ = false;            // memory follows from length
  bool may_cut_ = false;                  // data decides how many stay
  std::vector<std::int64_t> side_bytes_;  // [i]: most beyond token_bytes, up to 16 * (i + 1) tokens
  RowPatterns patterns_;
  std::unordered_map<StepKey, FootprintStep, StepKey::Hash> known_;  // with prompt tokens
  // Decode steps with keys that differ only in tokens held.
  static constexpr std::int32_t kChunk = 16;
  struct Chunk {
    std::uint32_t known = 0;
    std::array<FootprintStep, kChunk> steps;
  };
  // From `seen` to `until` seen tokens, a token per step or none.
  struct Trail {
    std::int32_t prompt = -1, state = 0, seen = 0, held = 0;
    std::int64_t until = 0;
    StepKey key;
    std::int32_t chunk_index = -1;
    Chunk* chunk = nullptr;
    [[nodiscard]] bool holds(const SeqState& seq, std::int32_t its_state) const {
      return prompt == seq.prompt_tokens && state == its_state && seq.seen_tokens >= seen && seq.seen_tokens < until &&
             (seq.held_tokens - held == seq.seen_tokens - seen || (seq.held_tokens == held && held < seen));
    }
  };
  Trail& trail_of(const SeqState& seq);
  // Valid until the next call. leaves_hashed: as if it had not.
  const FootprintStep& known_on(Trail& trail, const SeqState& seq) {
    const auto i = static_cast<std::size_t>(seq.held_tokens % kChunk);
    const bool is_known = seq.held_tokens / kChunk == trail.chunk_index && (trail.chunk->known >> i & 1U) != 0;
    return is_known ? trail.chunk->steps[i] : find_on(trail, seq);
  }
  const FootprintStep& find_on(Trail& trail, const SeqState& seq);
  std::unordered_map<StepKey, std::unique_ptr<Chunk>, StepKey::Hash> chunks_;
  static constexpr std::uint32_t kTrails = 2048;
  std::vector<Trail> trails_ = std::vector<Trail>(kTrails);  // by prompt and tokens held or lost
  std::vector<StepOps::Walk> walks_;
  std::vector<StepOps::Read> of_walks_;
  struct Recent {
    std::array<std::int32_t, 6> state{-1};
    FootprintStep done;
  };
  std::vector<Recent> recent_{1024};
};

}  // namespace kvlab
