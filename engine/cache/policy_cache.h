#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/cache/engine_observer.h"
#include "engine/cache/sequence.h"
#include "engine/device/device_attention.h"
#include "engine/model/record.h"
#include "engine/model/transformer.h"
#include "kernels/element.h"
#include "kernels/select/guess_queries/guess_queries.h"
#include "kernels/tensor_memory.h"

namespace kvlab {

class CacheModel {
 public:
  virtual ~CacheModel() = default;
  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  // Keys and values.
  [[nodiscard]] virtual TensorMemory memory() const { return {}; }
  [[nodiscard]] virtual ElementType kv_type() const { return ElementType::kF32; }
  // W_o, float32 [hidden_dim, q_heads * head_dim] in memory().
  [[nodiscard]] virtual const float* output_weights(std::int32_t layer) const = 0;
  // None on a GPU.
  [[nodiscard]] virtual QueryWeights query_weights(std::int32_t /*layer*/) const { return {}; }
  // Null: no extra passes in steps.
  [[nodiscard]] virtual const Transformer* transformer() const { return nullptr; }
};

// A batch's paged KV cache under a policy. A step is begin_step, the forward pass, end_step, with operations in ShapeRun's order.
class PolicyCache final : public AttentionHost, public DeviceAttentionHost {
 public:
  struct Options {
    std::int32_t page_tokens = 16;
    std::int32_t kv_bytes = 4;  // per uncompressed element
    std::uint64_t seed = 1;
    CountSource* counts = nullptr;
    RecordOptions passes = {};
    // After the prompt, packs encoded sequences between steps; only the current layer is in pages.
    bool packs = false;
    // After the prompt, tokens that the last step of a tiered selector did not read move to CPU memory, also instead of disk. Pages as
    // above.
    bool tiers = false;
    bool poisons = false;             // for tests: NaN for tokens on lower tiers
    std::int32_t reserved_pages = 0;  // allocated at once; growth on a GPU copies
  };
  // Throws InputError if the recipe does not fit host or model, or needs future tokens; on a GPU, also later, if pages do not fit.
  PolicyCache(const Transformer& model, const Recipe& recipe, const Options& options);
  PolicyCache(std::unique_ptr<const CacheModel> model, const Recipe& recipe, const Options& options);
  ~PolicyCache() override;

  // Throws InputError if an unknown question_begin is needed.
  void start(EngineSequence& sequence);
  void release(EngineSequence& sequence);
  // After an exchange of its pages between steps.
  void pages_moved(EngineSequence& sequence) { sequence.pages_id = ++pages_ids_; }
  // Moves packed data to CPU memory, or back before the next step.
  void move_rest(EngineSequence& sequence, bool to_host);
  [[nodiscard]] bool may_rest() const { return (options_.packs && policy_.encodes()) || (options_.tiers && policy_.moves_lower()); }
  // For uncut sequences.
  void truncate(EngineSequence& sequence, std::int32_t tokens);
  // Runs a fresh sequence's prompt in one step.
  void adopt(EngineSequence& sequence, const PromptTensors& prompt);

  // Throws InputError for a part of a prompt that the recipe prunes.
  void begin_step(std::span<const StepPiece> pieces);
  void before_rope(std::int32_t layer, const float* hidden, const float* q, const float* k) override;
  void attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) override;
  [[nodiscard]] std::span<const std::int32_t> going_on(std::int32_t layer) override;
  [[nodiscard]] Rewritten rewritten(const TokenBatch& batch) override;
  void before_rope(std::int32_t layer, const DeviceLayer& in) override;
  void attend(std::int32_t layer, const DeviceLayer& in, void* out) override;
  // `hidden`: of Transformer::forward(); empty on a GPU.
  void end_step(std::span<const float> hidden);

  [[nodiscard]] TierBytes resident(EngineSequence& sequence);
  struct HeldBytes {
    std::int64_t kv = 0, beside = 0;  // keys and values; positions and statistics
    std::int64_t host = 0;            // in CPU memory
  };
  [[nodiscard]] HeldBytes held(const EngineSequence& sequence) const;
  Traffic take_traffic() { return policy_.take_traffic(); }
  // Between tiers, since the last call.
  Traffic take_moved();
  // [layers * kv_heads], in row order.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> positions(EngineSequence& sequence);
  [[nodiscard]] const KvPolicy& policy() const { return policy_; }
  [[nodiscard]] const ModelShape& shape() const { return shape_; }
  [[nodiscard]] const KvPages& pages() const { return *pages_; }
  KvPages& pages() { return *pages_; }
  Ops& ops() { return ops_; }
  // CPU only: first-touches reserved pages and memory for steps of `tokens` tokens.
  void touch_memory(const Transformer& model, std::int32_t tokens);
  std::shared_ptr<void>& attachment() { return attachment_; }

 private:
  struct Group;
  struct LayerInput;
  class Keeper;
  void make_room(std::span<const StepPiece> pieces);
  void open(Group& g);
  void close(Group& g);
  [[nodiscard]] PolicyStep step_of(Group& g);
  void unshare(Group& g, std::int32_t layer);
  void wake(Group& g, std::int32_t layer);
  void rest(Group& g, std::int32_t layer);
  void rest_packed(Group& g, std::int32_t layer);
  void rest_pages(Group& g, std::int32_t layer);
  void raise(Group& g, std::int32_t layer);
  void lower(Group& g, std::int32_t layer);
  void lower(Group& g, std::int32_t layer, const Selection& beside);
  void append(Group& g, std::int32_t layer, const LayerInput& in);
  void keep_inputs(const float* hidden);
  void attend_layer(std::int32_t layer, LayerInput in);
  void attend_segments(Group& g, std::int32_t layer, LayerInput& in);
  void attend_whole(Group& g, std::size_t s, std::int32_t layer, const LayerInput& in);
  void gather(Group& g, std::size_t s, std::int32_t layer, float* k, float* v);
  [[nodiscard]] bool is_whole(Group& g, std::size_t s, std::int32_t layer) const;
  [[nodiscard]] std::vector<std::int32_t> tokens_that_stay(const SeqStep& seq, std::span<const std::int32_t> ids);
  struct Piece {
    Group* group;
    std::size_t s;
  };
  [[nodiscard]] std::vector<Piece> pieces_in_order() const;
  void take_rows(const Piece& piece, std::span<const std::int32_t> left, std::vector<std::int32_t>& rows);
  void place_pruned(Group& g, std::size_t s, std::int32_t layer);
  void remember(Group& g, std::size_t s, std::int32_t layer, const float* q);
  void keep(Group& g, std::int32_t layer);
  void run_pass(Group& g, std::size_t s, std::span<const float> hidden);
  ExtraPass pass_over_rows(Group& g, std::size_t s, std::span<const std::int32_t> ids, const RecordOptions& options);
  ExtraPass pass_over_prompt(Group& g, std::size_t s, std::span<const float> hidden, std::span<const std::int32_t> ids,
                             const RecordOptions& options);

  [[nodiscard]] bool has_prefill_kernel() const;
  void attend_prompts(Group& g, std::int32_t layer, LayerInput& in);
  void attend_selected(Group& g, std::size_t s, std::int32_t layer, LayerInput& in);
  bool attend_decoding(const Group& g, std::int32_t layer, const LayerInput& in);
  void make_floats(LayerInput& in);
  void return_outputs(const Group& g, const LayerInput& in);
  void return_outputs(const LayerInput& in, std::int64_t first, std::int64_t tokens);
  const float* as_floats(TensorArray<float>& to, const void* from, std::int64_t rows, std::int64_t width, std::int64_t stride,
                         ElementType type);

  std::unique_ptr<const CacheModel> model_;
  ModelShape shape_;
  KvPolicy policy_;
  Options options_;
  bool shares_layers_;
  std::unique_ptr<Keeper> keeper_;
  Ops ops_;
  std::shared_ptr<KvPages> pages_;
  std::vector<std::unique_ptr<Group>> groups_;  // of the step: decoding, then in prompts
  std::vector<Segment> segments_;
  std::vector<std::int32_t> going_on_;  // rows after the last pruning
  std::vector<std::int32_t> rewritten_rows_, rewritten_positions_;
  BigArray<float> scratch_, whole_k_, whole_v_;
  TensorArray<float> q_, k_, hidden_, out_;        // for GPU models without float32
  std::vector<float> hidden_before_, hidden_now_;  // for guessed queries
  std::int64_t steps_ = 0;
  std::uint64_t pages_ids_ = 0;
  std::shared_ptr<void> attachment_;
};

// Both throw InputError for such a recipe if the model has windows.
void refuse_renumbering(const Recipe& recipe, const ModelConfig& model);
void refuse_pruning(const Recipe& recipe, const ModelConfig& model);
// Throws InputError for a pass inside a step (adopted prompts bring theirs).
void refuse_extra_pass(const Recipe& recipe, const Needs& needs);
// Throws InputError if backend cuda refuses the recipe.
void refuse_cpu_only(const Recipe& recipe, const Needs& needs);

}  // namespace kvlab
