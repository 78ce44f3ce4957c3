#pragma once

#include <cstdint>

#include "policies/kv/prefill_selector/prefill_selector.h"

namespace kvlab {

// Lists key blocks, and optionally columns, per query head and query block (SparsePrefill).
class BlockSelector : public PrefillSelector {
 public:
  std::int64_t attend(const PromptChunk& chunk) final;
  [[nodiscard]] bool is_dense(std::int32_t layer) const override { return layer < dense_layers_; }
  [[nodiscard]] std::int32_t layer_kind(std::int32_t layer) const override { return layer < dense_layers_ ? 0 : 1; }

 protected:
  BlockSelector(Params& p, std::int32_t block_tokens);
  // Bits that choose() adds, as in kernels/select. columns null: no has_columns().
  struct Marks {
    std::int32_t* blocks = nullptr;
    std::int32_t* columns = nullptr;
  };
  virtual void choose(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) = 0;
  [[nodiscard]] virtual bool has_columns() const { return false; }
  // For costs: blocks of a list with its own, and columns. before: blocks up to the own one.
  [[nodiscard]] virtual std::int32_t expected_blocks(const PromptBlocks& prompt, std::int64_t list, std::int32_t before) const = 0;
  [[nodiscard]] virtual std::int32_t expected_columns(const PromptBlocks&, std::int64_t /*list*/, std::int32_t /*before*/) const {
    return 0;
  }
  // False: list lengths follow from prompt lengths.
  [[nodiscard]] virtual bool depends_on_data() const { return true; }
  [[nodiscard]] std::int32_t block_tokens() const { return block_; }

 private:
  struct Counts {
    std::int32_t *blocks, *columns;  // [num_lists]
  };
  Counts count(const PromptChunk& chunk, const PromptBlocks& prompt, const Marks& marks) const;

  std::int32_t block_, dense_layers_;
};

// `count` per query head, in CPU memory.
std::int32_t* for_heads(Ops& ops, std::int64_t q_heads, std::int32_t count);

}  // namespace kvlab
