#pragma once

#include <vector>

#include "kernels/select/prompt_blocks.h"
#include "policies/kv/part.h"

// The seventh part of a KV policy: chooses the cached tokens that the queries of a prompt attend to. K and V of all tokens stay. Registered
// selectors are named in YAML: `prefill_selector: {a_shape: {...}}`; without one prompts are the model's own attention.
namespace kvlab {

// One chunk of a prompt in one layer, of which nothing was cut. Data pointers are null on shapes.
struct PromptChunk {
  Ops& ops;
  const ModelShape& model;
  std::int32_t layer = 0;
  SeqStep seq;
  const float* q = nullptr;  // [new_tokens, q_heads, head_dim]
  const float* k = nullptr;  // [end, kv_heads, head_dim]
  const float* v = nullptr;  // [end, kv_heads, head_dim]
  float* out = nullptr;      // [new_tokens, q_heads, head_dim]
  float* log_sum = nullptr;  // [new_tokens, q_heads] over the chosen keys; null: not asked for
  std::int64_t window = 0;   // of the layer; 0: none

  [[nodiscard]] PromptBlocks blocks(std::int32_t block) const;
};

class PrefillSelector : public KvPart {
 public:
  [[nodiscard]] Needs needs() const override {
    Needs needs;
    needs.cpu_only = true;
    return needs;
  }
  // True: in this layer every query attends to all tokens up to its own; attend() is not called.
  [[nodiscard]] virtual bool is_dense(std::int32_t /*layer*/) const { return false; }
  [[nodiscard]] virtual bool selects_all() const { return false; }
  // Attention of the chunk's queries. Returns the query-key pairs computed, over all query heads, those of estimates excluded.
  virtual std::int64_t attend(const PromptChunk& chunk) = 0;
};

using PrefillSelectorRegistry = Registry<PrefillSelector>;

// A selector that lists key blocks, and single columns beside them, for every query head and query block (SparsePrefill).
class BlockSelector : public PrefillSelector {
 public:
  std::int64_t attend(const PromptChunk& chunk) final;
  [[nodiscard]] bool is_dense(std::int32_t layer) const override { return layer < dense_layers_; }
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer < dense_layers_ ? 0 : 1; }

 protected:
  BlockSelector(Params& p, std::int32_t block_tokens);
  // Bit marks that choose() adds to, as the operations of kernels/select take them; of columns null where the selector has none.
  struct Marks {
    std::int32_t* blocks = nullptr;
    std::int32_t* columns = nullptr;
  };
  virtual void choose(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) = 0;
  [[nodiscard]] virtual bool has_columns() const { return false; }
  // Blocks of a list, its own included, and columns that costs assume. `before` is the number of blocks up to the own one.
  [[nodiscard]] virtual std::int32_t expected_blocks(const PromptBlocks& prompt, std::int64_t list, std::int32_t before) const = 0;
  [[nodiscard]] virtual std::int32_t expected_columns(const PromptBlocks&, std::int64_t /*list*/, std::int32_t /*before*/) const {
    return 0;
  }
  // False: the lists' lengths follow from those of the prompt.
  [[nodiscard]] virtual bool depends_on_data() const { return true; }
  [[nodiscard]] std::int32_t block_tokens() const { return block_; }

 private:
  struct Counts {
    std::int32_t *blocks, *columns;  // [num_lists]
  };
  Counts count(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) const;

  std::int32_t block_, dense_layers_;
};

// The share of causal key blocks that costs assume for a selector whose lists follow from data.
class ExpectedShare {
 public:
  ExpectedShare(Params& p, double fallback);
  [[nodiscard]] std::int32_t of(std::int32_t before) const;

 private:
  double share_;
};

// `count` for each query head, in CPU memory.
std::int32_t* for_heads(Ops& ops, std::int64_t q_heads, std::int32_t count);

}  // namespace kvlab
