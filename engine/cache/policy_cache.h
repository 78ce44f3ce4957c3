#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/cache/cache_model.h"
#include "engine/cache/engine_observer.h"
#include "engine/cache/prompt_tensors.h"
#include "engine/cache/sequence.h"
#include "engine/device/device_attention.h"
#include "engine/model/transformer.h"

namespace kvlab {

// The KV cache of a batch of sequences in pages, with a policy that acts on it; a Transformer's attention runs over it. Each step is
// begin_step, the model's forward pass, end_step. For a model on a GPU, keys, values and all that the policy observes are in its memory,
// and the policy's operations run there (DeviceAttentionHost in place of AttentionHost). The order of operations is that of ShapeRun: layer
// by layer, decoding sequences, then those in their prompts.
class PolicyCache final : public AttentionHost, public DeviceAttentionHost {
 public:
  struct Options {
    std::int32_t page_tokens = 16;
    std::int32_t kv_bytes = 4;  // of a stored element of the uncompressed cache, for what is counted as resident
    std::uint64_t seed = 1;
    CountSource* counts = nullptr;  // is shown counts that depended on data, step by step
    RecordOptions passes = {};      // how extra passes are run
    // Sequences that a format encodes are packed between steps once their prompt is complete; only the current layer is in pages, decoded.
    bool packs = false;
    // Once the prompt is complete, tokens that a selector with tiers leaves on the host are in CPU memory, and those that its last step
    // read in the cache's, without gaps: only the current layer has pages. Disk counts as CPU memory.
    bool tiers = false;
    bool poisons = false;             // for tests: tokens on lower tiers are NaN in the current rows
    std::int32_t reserved_pages = 0;  // taken at once; a cache that grows in a GPU's memory needs room for both sizes
  };
  // Errors (InputError): the recipe does not claim this host, cannot run on the model, or wants to know the future; on a GPU
  // also pages that do not fit into its memory, here and wherever sequences grow.
  PolicyCache(const Transformer& model, const Recipe& recipe, const Options& options);
  PolicyCache(std::unique_ptr<const CacheModel> model, const Recipe& recipe, const Options& options);
  ~PolicyCache() override;

  // Makes ready for a sequence's first token. Error (InputError), here and in begin_step: a cut would leave less than what always stays.
  void start(EngineSequence& sequence);
  // Gives its pages back; its index can be taken by another.
  void release(EngineSequence& sequence);
  // Must be called after pages of its rows are exchanged between steps.
  void pages_moved(EngineSequence& sequence) { sequence.pages_id = ++pages_ids_; }
  // Moves all that a packed sequence holds beside pages to CPU memory, or back before its next step.
  void move_rest(EngineSequence& sequence, bool to_host);
  // True: sequences may be packed once their prompts are complete; their rows then have no pages between steps.
  [[nodiscard]] bool may_rest() const { return (options_.packs && policy_.encodes()) || (options_.tiers && policy_.moves_lower()); }
  // Forgets all but the first tokens of a sequence from which nothing was cut.
  void truncate(EngineSequence& sequence, std::int32_t tokens);
  // Advances a fresh sequence past its prompt: the policy acts as if the prompt had been run in one step.
  void adopt(EngineSequence& sequence, const PromptTensors& prompt);

  void begin_step(std::span<const StepPiece> pieces);
  void before_rope(std::int32_t layer, const float* hidden, const float* q, const float* k) override;
  void attend(std::int32_t layer, const float* q, const float* k, const float* v, float* out) override;
  [[nodiscard]] std::span<const std::int32_t> going_on(std::int32_t layer) override;
  [[nodiscard]] Rewritten rewritten(const TokenBatch& batch) override;
  void before_rope(std::int32_t layer, const DeviceLayer& in) override;
  void attend(std::int32_t layer, const DeviceLayer& in, void* out) override;
  // `hidden`: the result of Transformer::forward(); empty for a model on a GPU.
  void end_step(std::span<const float> hidden);

  // Bytes of all layers that the sequence takes, as its recipe stores them.
  [[nodiscard]] TierBytes resident(EngineSequence& sequence);
  // Bytes of the sequence in this cache's memory: of whole pages, or packed.
  struct HeldBytes {
    std::int64_t kv = 0, beside = 0;  // keys and values; positions and statistics
    std::int64_t host = 0;            // keys and values that the policy moved to CPU memory
  };
  [[nodiscard]] HeldBytes held(const EngineSequence& sequence) const;
  Traffic take_traffic() { return policy_.take_traffic(); }  // as counted by the policy
  // The bytes really moved to and from lower tiers (Options::tiers) since the last call.
  Traffic take_moved();
  // Positions of the tokens held, [layers * kv_heads] in the order of their rows.
  [[nodiscard]] std::vector<std::vector<std::int32_t>> positions(EngineSequence& sequence);
  [[nodiscard]] const KvPolicy& policy() const { return policy_; }
  [[nodiscard]] const ModelShape& shape() const { return shape_; }
  [[nodiscard]] const KvPages& pages() const { return *pages_; }
  KvPages& pages() { return *pages_; }
  Ops& ops() { return ops_; }
  // On the CPU: touches the memory of steps of up to `tokens` tokens over sequences of that length, and the reserved pages, so that no step
  // is the first to touch it.
  void touch_memory(const Transformer& model, std::int32_t tokens);
  // State that the model keeps for this cache.
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
  void observe_inputs(std::int32_t layer, const float* hidden, const float* q, const float* k);
  void keep_inputs(const float* hidden);
  void attend_layer(std::int32_t layer, LayerInput in);
  void attend_segments(Group& g, std::int32_t layer, LayerInput& in);
  void attend_whole(Group& g, std::size_t s, std::int32_t layer, const LayerInput& in);
  void gather(Group& g, std::size_t s, std::int32_t layer);
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

  // On a GPU.
  [[nodiscard]] bool has_prefill_kernel() const;
  void attend_prompts(Group& g, std::int32_t layer, const LayerInput& in);
  bool attend_decoding(const Group& g, std::int32_t layer, const LayerInput& in);
  void make_floats(LayerInput& in);
  void return_outputs(const Group& g, const LayerInput& in);
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
  std::vector<std::unique_ptr<Group>> groups_;  // of the step: decoding sequences, then those in their prompts
  std::vector<Segment> segments_;
  std::vector<std::int32_t> going_on_;                              // rows of the pass after the latest layer that pruned
  std::vector<std::int32_t> rewritten_rows_, rewritten_positions_;  // of the pass
  BigArray<float> scratch_, whole_k_, whole_v_;
  TensorArray<float> q_, k_, hidden_, out_;        // of the layer, where a model on a GPU computes in another type
  std::vector<float> hidden_before_, hidden_now_;  // inputs of the last two layers, where queries are guessed
  std::int64_t steps_ = 0;
  std::uint64_t pages_ids_ = 0;  // given to sequences so far
  std::shared_ptr<void> attachment_;
};

// Error (InputError): the recipe renumbers keys, and the model has layers with windows.
void refuse_renumbering(const Recipe& recipe, const ModelConfig& model);
// The same: it prunes prompts.
void refuse_pruning(const Recipe& recipe, const ModelConfig& model);
// Error (InputError): the recipe needs an extra pass. For models that run none inside a step (an adopted prompt brings its own).
void refuse_extra_pass(const Recipe& recipe, const Needs& needs);
// Error (InputError) where some operation of the recipe has no CUDA kernel, or 16 bits are too few for what it does.
void refuse_cpu_only(const Recipe& recipe, const Needs& needs);

}  // namespace kvlab
