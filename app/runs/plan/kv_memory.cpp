#include "app/runs/plan/kv_memory.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdint>

#include "base/error.h"
#include "kernels/storage/quantize/quantize.h"
#include "policies/kv/grouped_layers.h"
#include "policies/kv/policy/policy.h"
#include "sim/cost/make_cost_model.h"
#include "sim/cost/profile.h"

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

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;

// Memory reserved by a derived block count: the scheduler's limits, else these.
LargestStep largest_step(const PoolSetup& pool) {
  constexpr std::int64_t kTokens = 8192, kRows = 256;
  const std::unique_ptr<Scheduler> scheduler = pool.make_scheduler();
  const StepBounds bounds = scheduler->step_bounds(pool.max_model_len);
  return {bounds.tokens > 0 ? bounds.tokens : kTokens, bounds.requests > 0 ? bounds.requests : kRows, scheduler->num_graphs()};
}

std::int64_t derived_blocks(const Params& p, const CostSetup& cost, double frac, std::int64_t reserve_bytes, std::int32_t block_tokens,
                            bool is_hybrid) {
  try {
    return derive_num_blocks(cost, frac, reserve_bytes, block_tokens, is_hybrid);
  } catch (const InputError& e) {
    p.fail_at(p.has("memory") ? "memory" : "model", e.what());
  }
}

std::int64_t read_num_blocks(const Params& p, Params& m, const PoolPlan& pool, const LargestStep& step, bool& is_derived) {
  const CostSetup& cost = pool.cost;
  if (m.has("num_blocks") && m.has("gpu_memory_frac"))
    m.fail_at("gpu_memory_frac", "'num_blocks' and 'gpu_memory_frac' exclude each other: give one");
  if (m.has("num_blocks") && m.has("reserve_bytes")) m.fail_at("reserve_bytes", "'reserve_bytes' means nothing beside 'num_blocks'");
  const auto block_tokens = m.optional<std::int32_t>("block_tokens", 16, 1, 1 << 20, "tokens per KV block");
  const double frac = m.optional<double>("gpu_memory_frac", 0.9, 0.01, 1, "share of GPU memory for weights, reserve and KV");
  const std::int64_t reserve =
      m.optional<std::int64_t>("reserve_bytes", default_reserve_bytes(cost, step), 0, kMaxBytes, "memory per GPU beside weights and KV");
  const auto given =
      m.optional<std::int64_t>("num_blocks", 0, 1, kMaxBlocks, "KV blocks per replica (with dp, per rank); absent: derived from memory");
  const bool has_null_block = m.flag("null_block", false, "one of num_blocks is the engine's null block and holds nothing (vLLM v1)");
  is_derived = given == 0;
  const std::int64_t blocks =
      is_derived ? derived_blocks(p, cost, frac, reserve + pool.encoder_bytes, block_tokens, pool.is_hybrid) : given;
  if (blocks - (has_null_block ? 1 : 0) < 1) m.fail_at("num_blocks", "'num_blocks' leaves no usable block beside the null block");
  return blocks - (has_null_block ? 1 : 0);
}

std::int64_t kv_bytes_of_full_layers(const ModelSpec& m) {
  double bytes = 0;
  for (const LayerClass& layers : layer_classes(m))
    if (layers.attention != AttentionKind::kWindow) bytes += static_cast<double>(layers.count) * kv_bytes_of_layer(m, layers);
  return std::llround(bytes);
}

// Each layer keeps all tokens, or those its kind needs.
void use_plain_cache(const KvLayout& layout, PoolPlan& pool, std::vector<std::string>& remarks) {
  if (layout.is_one_group()) {
    pool.make_footprint = [] { return std::make_unique<KeepAll>(); };
    return;
  }
  const std::int64_t step_tokens = pool.make_scheduler()->step_bounds(pool.max_model_len).tokens;
  const LayerGroups groups{pool.memory.block_tokens, layout.window, layout.window_groups, layout.state_pages, step_tokens};
  pool.make_footprint = [groups] { return std::make_unique<GroupedLayers>(groups); };
  const std::string& model = pool.cost.model.name;
  if (!pool.memory.prefix_caching) return;
  remarks.push_back(layout.state_groups > 0
                        ? model + ": prefixes are not found again, because layers of linear attention keep no state of them"
                        : model +
                              ": a prefix is found again where the layers that see all tokens have it; blocks of layers with a "
                              "window are taken to be there too");
}

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

std::int64_t read_memory(Params& p, PoolPlan& pool) {
  const CostSetup& cost = pool.cost;
  Params m = p.optional_child("memory", "memory");
  MemorySetup& memory = pool.memory;
  const bool has_kinds = !cost.model.attention_kinds.empty() || m.has("hybrid") || m.is_describing();
  const bool is_paged = !pool.make_scheduler()->wants_contiguous_memory();
  pool.is_hybrid =
      !has_kinds ? is_paged
                 : m.flag("hybrid", is_paged, "layers with a window give back what it has left, and states have pages, as in vLLM v1");
  memory.num_blocks = read_num_blocks(p, m, pool, largest_step(pool), memory.is_derived);
  memory.block_tokens = m.optional<std::int32_t>("block_tokens", 16, 1, 1 << 20, "tokens per KV block");
  const KvLayout layout = kv_layout(cost.model, cost.parallel, memory.block_tokens, pool.is_hybrid);
  if (layout.is_one_group()) {
    memory.block_bytes = memory.block_tokens * kv_bytes_per_token(cost.model);
    memory.pages_per_block = static_cast<std::int32_t>(cost.model.layers * cost.model.kv_heads);
  } else {
    memory.block_bytes = memory.block_tokens * kv_bytes_of_full_layers(cost.model);
    memory.pages_per_block = static_cast<std::int32_t>(layout.full_groups);
  }
  const auto host_bytes = m.optional<std::int64_t>("host_memory_bytes", std::int64_t{4} << 30, 0, kMaxBytes,
                                                   "host memory for swapped KV, per replica (with dp, per rank)");
  const double pcie = cost.hardware.pcie_bytes_per_s * cost.parallel.gpus_of_rank();
  pool.swap_link.bytes_per_s =
      m.optional<double>("swap_bytes_per_s", pcie > 0 ? pcie : 25e9, 1, 1e15, "bandwidth to host memory, one direction");
  pool.swap_link.call_time = from_seconds(m.optional<double>("swap_call_us", 10, 0, 1e6, "time of one copy call") * 1e-6);
  pool.has_eight_bit_copies = read_swap(m, memory);
  memory.prefix_caching = p.flag("prefix_caching", true, "full blocks are kept and found again by their content");
  m.reject_unread();
  return host_bytes;
}

void read_kv_policy(Params& p, PoolPlan& pool, std::vector<std::string>& remarks) {
  Params policy = p.child_or_text("kv_policy", "recipe", "kv_policy");
  pool.recipe = read_recipe(policy);
  const Recipe& recipe = pool.recipe;
  const KvLayout layout = kv_layout(pool.cost.model, pool.cost.parallel, pool.memory.block_tokens, pool.is_hybrid);
  if (recipe.keeps_everything()) return use_plain_cache(layout, pool, remarks);
  use_recipe(p, layout, pool);
}

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
