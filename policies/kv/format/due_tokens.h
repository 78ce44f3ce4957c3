#pragma once

#include <cstdint>
#include <vector>

#include "kernels/kv_rows.h"
#include "kernels/tensor_memory.h"
#include "policies/kv/part.h"

namespace kvlab {

// Encodes tokens once, oldest first, in whole blocks, except for the newest residual_tokens to residual_tokens + block_tokens - 1.
struct DueRule {
  std::int32_t residual_tokens = 0, block_tokens = 1;
  bool inside_prompt = false;  // false: the prompt's attention reads unencoded K and V
  bool prompt_only = false;    // once, when the prompt is complete

  // For a row of n without evictions.
  [[nodiscard]] std::int32_t encoded(std::int32_t n) const {
    const std::int32_t old = n > residual_tokens ? n - residual_tokens : 0;
    return old - old % block_tokens;
  }
  // Lengths around `len` at which steps encode equally many tokens, without evictions.
  [[nodiscard]] Lengths lengths(std::int32_t len) const { return Lengths::inside_block(len, block_tokens, residual_tokens); }
};

// Lists the due tokens of a layer. A mark in a word that moves with the token tells if it is encoded. List lengths follow from row lengths;
// after unencoded tokens were evicted, spare entries are -1.
class DueTokens final : public PartState {
 public:
  DueTokens(KvPart& part, DueRule rule, std::uint32_t bit = 1) : PartState(part), rule_(rule), bit_(bit) {}

  // Keys of due tokens (of_values(): values), now marked in word `channel`. Scratch of step.ops; no operation if none are due.
  ListedTokens take(LayerStep& step, std::int32_t channel);
  void forget(std::int32_t index) override;
  [[nodiscard]] const DueRule& rule() const { return rule_; }

 private:
  struct Row {
    std::int32_t end = 0, unencoded = 0;
  };
  Row& row(std::int32_t layer, std::int32_t kv_heads, std::int32_t index, std::int32_t head);

  DueRule rule_;
  std::uint32_t bit_;
  std::vector<std::vector<Row>> rows_;  // [layer][index * kv_heads + head]
  std::int32_t kv_heads_ = 0;
};

// [batch index * kv_heads + head].
std::int32_t* state_rows(LayerStep& step);

// -1 for rows without a completed prompt in this step; null if none has.
std::int32_t* prompt_rows(LayerStep& step);

// One line per sequence and KV head in every layer; no memory on shapes.
class RowTable final : public PartState {
 public:
  RowTable(KvPart& part, float fill) : PartState(part), fill_(fill) {}
  // [*, width]; long enough for the step's sequences, new ones filled. Null without data.
  float* lines(LayerStep& step, std::int32_t width);
  void forget(std::int32_t index) override;

 private:
  float fill_;
  std::int64_t sequence_numbers_ = 0;
  std::vector<TensorArray<float>> layers_;
};

}  // namespace kvlab
