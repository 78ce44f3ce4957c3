#pragma once

#include <cstdint>
#include <vector>

#include "kernels/listed_tokens.h"
#include "policies/kv/part.h"

namespace kvlab {

// When tokens are encoded: once, oldest first, in whole blocks, so that `residual_tokens` to residual_tokens + block_tokens - 1 of
// the newest stay in the model's precision.
struct DueRule {
  std::int32_t residual_tokens = 0, block_tokens = 1;
  bool inside_prompt = false;  // false: the whole prompt is computed over unencoded K and V
  bool prompt_only = false;    // true: once, when the prompt is complete; later tokens stay as they are

  // Tokens encoded of a row of n that lost none since.
  [[nodiscard]] std::int32_t encoded(std::int32_t n) const {
    const std::int32_t old = n > residual_tokens ? n - residual_tokens : 0;
    return old - old % block_tokens;
  }
  // Row lengths around `len` over which steps encode the same number of tokens, as long as nothing is evicted.
  [[nodiscard]] Lengths lengths(std::int32_t len) const { return Lengths::inside_block(len, block_tokens, residual_tokens); }
};

// Lists the tokens of a layer that are due. A mark in a word of each token, which moves with it, tells if it is encoded already. The
// lengths of the lists follow from row lengths alone; after unencoded tokens were evicted, the spare entries are -1.
class DueTokens {
 public:
  explicit DueTokens(DueRule rule, std::uint32_t bit = 1) : rule_(rule), bit_(bit) {}

  // Keys of the due tokens (of_values() for their values), marked from now on in word `channel`. The lists are scratch of step.ops.
  // Calls no operation where nothing is due.
  ListedTokens take(LayerStep& step, std::int32_t channel);
  void forget(std::int32_t index);
  [[nodiscard]] const DueRule& rule() const { return rule_; }

 private:
  struct Row {
    std::int32_t end = 0, unencoded = 0;  // one past the sequence's last token, and its unencoded tokens, at the last step
  };
  Row& row(std::int32_t layer, std::int32_t kv_heads, std::int32_t index, std::int32_t head);

  DueRule rule_;
  std::uint32_t bit_;
  std::vector<std::vector<Row>> rows_;  // [layer][index * kv_heads + head]
  std::int32_t kv_heads_ = 0;
};

// For each row of the step the line of its sequence's own numbers in a table [batch index * kv_heads + head].
std::int32_t* state_rows(LayerStep& step);

// The same with -1 for rows of sequences that do not complete their prompt in this step; null where none does.
std::int32_t* prompt_rows(LayerStep& step);

// One line per sequence and KV head in every layer, kept from step to step; no memory where nothing is computed.
class RowTable {
 public:
  explicit RowTable(float fill) : fill_(fill) {}
  // The layer's lines [*, width]; long enough for the step's sequences, new ones filled. Null without data.
  float* lines(LayerStep& step, std::int32_t width);
  void forget(std::int32_t index);

 private:
  float fill_;
  std::int64_t sequence_numbers_ = 0;  // of one sequence in one layer
  std::vector<TensorArray<float>> layers_;
};

}  // namespace kvlab
