#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policies/kv/count_sources.h"
#include "policies/kv/footprint.h"
#include "policies/kv/shape_run.h"

namespace kvlab {

// The name of the time to unpack sequences before a step and to pack them again, beside a policy's operations: as a host measures it, and
// by recipe in a profile.
inline constexpr std::string_view kAtRest = "at_rest";
inline std::string at_rest_of(const std::string& recipe) { return std::string(kAtRest) + "/" + recipe; }

// The operations that unpack a sequence in a decode step and pack it again, if only the codes of the recipe's format stay between steps, or
// a selector has a lower tier. Layer by layer, codes are decoded into pages; tokens that are not encoded, or that a tier keeps on the GPU,
// are copied ("token_copy") into pages and out again, with positions and statistics. Nothing is encoded again, and copies from CPU memory
// are not counted here. An operation is called once per layer and sequence.
//
// The codes come from the parts: they run on shapes up to the end of a prompt, as if all tokens had come with it. Tokens encoded in several
// steps of decode may have more codes than that, which are decoded one after another. Sequences that lose encoded tokens in the middle of
// their prompt are not packed in the engine; here they are.
//
// If a profile measured all of that as a whole, in steps of the recipe, it is one operation `whole` per step, over the bytes of the packed
// tokens' K and V in the model's type; it then includes copies from CPU memory.
class UnpackOps {
 public:
  // Errors as ShapeRun's. `whole`: "" where it was not measured.
  UnpackOps(const Recipe& recipe, const ModelShape& model, std::string whole = "");

  [[nodiscard]] bool has_fetches() const { return !whole_.empty(); }

  // Adds to the step a sequence that is packed with `held_tokens` over all its layers and KV heads. These are a part of the tokens that the
  // recipe leaves of a prompt of `prompt_tokens`, or a few more: all sizes are taken in proportion.
  void add(std::int32_t prompt_tokens, std::int64_t held_tokens);
  // Adds the step's sums to `ops`, and begins another step.
  void take(std::vector<PolicyOp>& ops);
  // How often the parts were run so far.
  [[nodiscard]] std::int64_t runs() const { return runs_; }

 private:
  struct Unpacked {
    std::int64_t held_tokens = 0;  // over all rows
    std::vector<PolicyOp> ops;
  };
  struct Sum {
    std::string_view name;
    std::int64_t launches = 0;
    double bytes = 0, flops = 0;
  };
  // The cost of a sequence of one length per token that it holds; launches in total.
  struct PerToken {
    bool is_known = false;
    std::vector<std::pair<std::size_t, Sum>> ops;  // with their place in sums_
  };
  static constexpr std::int32_t kStep = 16;  // tokens: prompts are rounded up to a multiple
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
  ShapeRun shapes_;  // takes counts_; apart from the footprint's, whose parts must not see these prompts
  bool has_tiers_;
  std::vector<PerToken> known_;  // by steps of the prompt
  std::vector<Sum> sums_;
  std::int64_t runs_ = 0;
};

}  // namespace kvlab
