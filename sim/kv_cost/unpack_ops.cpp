#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/storage/stored/stored_code.h"
#include "kernels/storage/token_copy_op.h"
#include "policies/kv/forward_passes.h"
#include "serving/op_sums.h"
#include "sim/kv_cost/recipe_footprint.h"
#include "sim/kv_cost/step_ops.h"

namespace kvlab {

namespace {

// Encoded tokens by decoding operation, and tokens read.
class StepNotes final : public KvKeeper {
 public:
  struct Layer {
    std::vector<OpCall> decoding;
    // K and V: lists and lengths. Operations on one list decode the same tokens.
    std::vector<std::pair<const std::int64_t*, std::int64_t>> lists[2];
    std::int64_t read_tokens = -1;  // all heads; -1: no fetch

    [[nodiscard]] std::int64_t encoded(std::size_t side) const {
      std::int64_t tokens = 0;
      for (const auto& list : lists[side]) tokens += list.second;
      return tokens;
    }
  };
  explicit StepNotes(std::int32_t num_layers) : layers_(static_cast<std::size_t>(num_layers)) {}
  [[nodiscard]] const std::vector<Layer>& layers() const { return layers_; }

  void keep(const LayerStep& step, const DecodeOp& op) override {
    const auto& tokens = op.tokens();
    if (tokens.total() == 0) return;
    Layer& layer = layers_[static_cast<std::size_t>(step.layer)];
    layer.decoding.push_back(op.unpack_cost());
    auto& lists = layer.lists[tokens.values ? 1 : 0];
    const auto at = std::find_if(lists.begin(), lists.end(), [&](const auto& list) { return list.first == tokens.first; });
    if (at == lists.end())
      lists.emplace_back(tokens.first, tokens.total());
    else
      at->second = std::max(at->second, tokens.total());
  }
  void keep(const LayerStep&, const TokenCopy&) override {}

  void fetch(const LayerStep& step, const Selection& selection) override {
    Layer& layer = layers_[static_cast<std::size_t>(step.layer)];
    if (layer.read_tokens >= 0) return;
    layer.read_tokens = selection.index_first == nullptr ? step.kv.total() : selection.index_first[step.kv.num_rows];
  }

 private:
  std::vector<Layer> layers_;
};

}  // namespace

UnpackOps::UnpackOps(const Recipe& recipe, const ModelShape& model, std::string whole)
    : model_(model),
      whole_(std::move(whole)),
      trigger_(recipe.make_trigger()),
      budget_(recipe.budget),
      counts_(recipe, model),
      shapes_(recipe, model, &counts_),
      has_tiers_(shapes_.policy().moves_lower()) {
  if (!shapes_.policy().may_rest()) whole_.clear();
}

void UnpackOps::add(std::int32_t prompt_tokens, std::int64_t held_tokens) {
  if (!whole_.empty()) {
    whole_bytes_ += 2 * held_tokens * model_.head_dim * model_.kv_bytes;
    return;
  }
  const auto step = static_cast<std::size_t>((std::max(prompt_tokens, 1) - 1) / kStep);
  if (known_.size() <= step) known_.resize(step + 1);
  if (!known_[step].is_known) known_[step] = run(static_cast<std::int32_t>(step + 1) * kStep);
  const auto held = static_cast<double>(held_tokens);
  for (const auto& [at, op] : known_[step].ops) {
    Sum& sum = sums_[at];
    sum.launches += op.launches, sum.bytes += held * op.bytes, sum.flops += held * op.flops;
  }
}

void UnpackOps::take(std::vector<PolicyOp>& ops) {
  if (whole_bytes_ > 0) add_op(ops, {whole_, 1, whole_bytes_, 0, false});
  whole_bytes_ = 0;
  for (Sum& sum : sums_) {
    if (sum.launches > 0) add_op(ops, {sum.name, sum.launches, std::llround(sum.bytes), std::llround(sum.flops), false});
    sum = {sum.name, 0, 0, 0};
  }
}

UnpackOps::PerToken UnpackOps::run(std::int32_t prompt_tokens) {
  ++runs_;
  shapes_.forget();
  const Unpacked found = has_tiers_ ? run_tiers(prompt_tokens) : run_codes(prompt_tokens);
  PerToken per_token{true, {}};
  const auto tokens = static_cast<double>(found.held_tokens);
  for (const PolicyOp& op : found.ops) {
    auto at = std::find_if(sums_.begin(), sums_.end(), [&](const Sum& sum) { return sum.name == op.name; });
    if (at == sums_.end()) at = sums_.insert(sums_.end(), {op.name, 0, 0, 0});
    const Sum each{op.name, op.launches, static_cast<double>(op.bytes) / tokens, static_cast<double>(op.flops) / tokens};
    per_token.ops.emplace_back(static_cast<std::size_t>(at - sums_.begin()), each);
  }
  return per_token;
}

UnpackOps::Unpacked UnpackOps::run_codes(std::int32_t prompt_tokens) {
  ShapeRun::Seq prompt{0, prompt_tokens, prompt_tokens, {0}, {}};
  prompt.inputs = input_sizes(shapes_.policy().needs(), prompt.as_step());
  counts_.set_target(shapes_.targets(prompt).most, trigger_->full({0, 0, prompt_tokens, prompt_tokens, -1}, budget_), prompt_tokens);
  StepNotes notes(model_.num_layers);
  const ShapeRun::Result result = shapes_.step(std::span(&prompt, 1), &notes);
  Unpacked found;
  auto row = result.held.begin();
  for (const StepNotes::Layer& layer : notes.layers()) {
    std::int64_t tokens = 0;
    for (std::int32_t h = 0; h < model_.kv_heads; ++h) tokens += *row++;
    found.held_tokens += tokens;
    if (layer.decoding.empty()) continue;
    add_copies(tokens, tokens - layer.encoded(0), tokens - layer.encoded(1), found);
    for (const OpCall& c : layer.decoding) add_calls(found.ops, c, 1);
  }
  return found;
}

// As if the prompt had ended a token earlier, without tokens that a selector always keeps.
UnpackOps::Unpacked UnpackOps::run_tiers(std::int32_t held_tokens) {
  ShapeRun::Seq seq{held_tokens, 1, held_tokens - 1, {held_tokens}, {}};
  seq.inputs = input_sizes(shapes_.policy().needs(), seq.as_step());
  counts_.set_target(0, 0, 0);
  StepNotes notes(model_.num_layers);
  shapes_.step(std::span(&seq, 1), &notes);
  const std::int64_t tokens = std::int64_t{model_.kv_heads} * held_tokens;
  Unpacked found;
  for (std::int32_t l = 0; l < model_.num_layers; ++l) {
    found.held_tokens += tokens;
    const Selector::Lower lower = shapes_.policy().lower(l);
    if (lower == Selector::Lower::kNothing) continue;
    const std::int64_t read = std::clamp<std::int64_t>(notes.layers()[static_cast<std::size_t>(l)].read_tokens, 0, tokens);
    add_copies(tokens, lower == Selector::Lower::kValues ? tokens : read, read, found);
  }
  return found;
}

// Into pages and back.
void UnpackOps::add_copies(std::int64_t tokens, std::int64_t keys, std::int64_t values, Unpacked& to) const {
  const std::int64_t first[] = {0, tokens};
  KvRows kv;
  kv.num_rows = 1, kv.first = first;
  kv.head_dim = model_.head_dim, kv.kv_bytes = model_.kv_bytes, kv.num_words = shapes_.policy().num_words();
  for (const auto way : {TokenCopy::Way::kIntoPages, TokenCopy::Way::kFromPages}) {
    add_calls(to.ops, call(copy_words(kv, way, nullptr)), 1);
    for (const std::int64_t n : {keys, values}) {
      const std::int64_t listed[] = {0, n};
      if (n > 0) add_calls(to.ops, call(TokenCopy{{kv, listed}, TokenCopy::Kind::kVectors, way}), 1);
    }
  }
}

}  // namespace kvlab
