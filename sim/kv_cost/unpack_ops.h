#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/kv/cache/kv_keeper.h"
#include "policies/kv/footprint.h"
#include "sim/kv_cost/count_sources.h"
#include "sim/kv_cost/shape_run.h"

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

}  // namespace kvlab
