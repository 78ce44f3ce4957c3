#include <fmt/format.h>

#include <cstdint>

#include "app/runs/plan/kv_memory.h"
#include "kernels/storage/quantize/quantize.h"
#include "policies/kv/policy/policy.h"
#include "sim/cost/kv_layout.h"

namespace kvlab {

bool read_swap(Params& memory, MemorySetup& setup) {
  using Overlap = SwapSetup::Overlap;
  setup.swap_group_blocks = memory.optional<std::int32_t>("swap_group_blocks", 1, 1, 1 << 20,
                                                          "most neighbouring blocks of a request that one copy call moves (FastSwitch)");
  setup.keeps_host_copies = memory.flag(
      "swap_reuse", false, "copies of requests that came back from host memory are kept, and only newer blocks are copied out again");
  setup.swap.keeps_turns =
      memory.flag("swap_keeps_turns", false, "with 'swap_reuse', copies of a turn that ended are kept for the next turn of its session");
  if (setup.swap.keeps_turns && !setup.keeps_host_copies && !memory.is_describing())
    memory.fail_at("swap_keeps_turns", "'swap_keeps_turns' means nothing without 'swap_reuse: true', which keeps copies: give both");
  setup.swap.overlap = memory.choice(
      "swap_overlap", {{"none", Overlap::kNone}, {"out", Overlap::kOut}, {"adaptive", Overlap::kAdaptive}}, Overlap::kNone,
      "copies beside steps; none: those from host memory; out: both, and a step waits for copies of blocks that it writes to; adaptive: "
      "out, and a step waits for a request that comes back where that costs fewer tokens");
  return memory.choice("swap_format", {"same", "int8"}, 0, "form of swapped KV in host memory; same: as on the GPU") == 1;
}

namespace {

// One layer, all heads: K or V.
ListedTokens one_block(const KvRows& rows, const std::vector<std::int64_t>& first) {
  ListedTokens tokens;
  tokens.kv = rows;
  tokens.first = first.data();
  return tokens;
}

void check_eight_bit_copies(Params& p, const PoolPlan& pool) {
  const ModelSpec& model = pool.cost.model;
  const KvLayout layout = kv_layout(model, pool.cost.parallel, pool.memory.block_tokens, pool.is_hybrid);
  std::string reason;
  if (model.latent.exists() || model.linear.exists() || model.compressed.exists() || !model.layer_shapes.empty() || !layout.is_one_group())
    reason = fmt::format("{} has layers that cache something else", model.name);
  else if (!pool.recipe.keeps_everything())
    reason = fmt::format("recipe '{}' stores KV in a form of its own", pool.recipe.name);
  else if (bits(model.kv_dtype) != 16)
    reason = fmt::format("the KV of {} has {} bits", model.name, bits(model.kv_dtype));
  if (reason.empty()) return;
  Params memory = p.optional_child("memory", "memory");
  memory.fail_at("swap_format",
                 "'swap_format: int8' quantizes K and V of 16 bits, head by head, and " + reason + ": leave it out, or write 'same'");
}

}  // namespace

void set_eight_bit_copies(Params& p, PoolPlan& pool) {
  check_eight_bit_copies(p, pool);
  const ModelSpec& model = pool.cost.model;
  KvRows rows;
  rows.num_rows = rows.kv_heads = static_cast<std::int32_t>(model.kv_heads);
  rows.head_dim = static_cast<std::int32_t>(model.head_dim);
  rows.kv_bytes = 2;
  std::vector<std::int64_t> first;
  for (std::int64_t r = 0; r <= rows.num_rows; ++r) first.push_back(r * pool.memory.block_tokens);
  const ListedTokens tokens = one_block(rows, first);
  const GroupCodec codec{.axis = GroupCodec::Axis::kChannel, .bits = 8};
  const std::int64_t sides = 2 * model.layers;  // K and V
  const OpCall encode = call(Quantize{.tokens = tokens, .codec = codec}),
               decode = call(Quantize{.tokens = tokens, .codec = codec, .mode = Quantize::Mode::kWrite});
  const auto of_block = [&](const OpCall& one) { return PolicyOp{one.op, sides, sides * one.bytes, sides * one.flops}; };
  pool.memory.swap.codec = {sides * packed_bytes(tokens, codec), of_block(encode), of_block(decode)};
}

void note_unused_swaps(const PoolPlan& pool, std::vector<std::string>& remarks) {
  const SwapSetup& swap = pool.memory.swap;
  if (swap.overlap == SwapSetup::Overlap::kNone && !swap.keeps_turns) return;
  if (pool.make_footprint()->keeps_everything()) return;
  remarks.emplace_back(
      "'memory: {swap_overlap, swap_keeps_turns}' have no effect on KV that a policy, or layers of several kinds, changes");
}

}  // namespace kvlab
