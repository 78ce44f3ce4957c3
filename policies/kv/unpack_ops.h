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

// What it takes a host, beside a policy's operations, to bring sequences back from rest and lay them down again: as a host times it, and
// by recipe in a profile.
inline constexpr std::string_view kAtRest = "at_rest";
inline std::string at_rest_of(const std::string& recipe) { return std::string(kAtRest) + "/" + recipe; }

// What bringing a sequence back from rest takes in a decode step, and laying it down again, where only what the recipe's format stores
// stays between steps, or a selector has a lower tier. Layer by layer codes are decoded into pages; what is not encoded, or what a tier
// keeps on the GPU, is copied ("token_copy") into pages and out again, with positions and statistics. Nothing is encoded again, and what
// comes from the host is not counted here. An operation is called once per layer and sequence.
//
// What is encoded is asked of the parts: they run on shapes up to the end of a prompt, as if all tokens had come with it. Tokens encoded in
// several goes during decode may lie in more codes than that, which are called one after another. Sequences that lose encoded tokens in
// the middle of their prompt do not rest in the engine; here they do.
//
// Where a profile measured all of that as a whole, in steps of the recipe, it is one operation `whole` per step, over the bytes that the
// resting tokens' K and V take in the model's type; then it contains what comes from the host.
class UnpackOps {
 public:
  // Errors as ShapeRun's. `whole`: "" where it was not measured.
  UnpackOps(const Recipe& recipe, const ModelShape& model, std::string whole = "");

  [[nodiscard]] bool has_fetches() const { return !whole_.empty(); }

  // Adds to the step what a sequence takes that rests with `held_tokens` over all its layers and KV heads. They are a part of what the
  // recipe leaves of a prompt of `prompt_tokens`, or a little more: all sizes are taken in proportion.
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
  // What a sequence of one length takes for each token that it holds; launches in all.
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
