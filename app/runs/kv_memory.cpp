#include "app/runs/kv_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/runs/swap_plan.h"
#include "base/error.h"
#include "policies/kv/grouped_layers.h"
#include "policies/kv/policy.h"
#include "policies/kv/recipe_footprint.h"
#include "sim/cost/kv_layout.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

constexpr std::int64_t kMaxBytes = std::int64_t{1} << 50;
constexpr std::int64_t kMaxBlocks = std::int64_t{1} << 30;

// The largest step that a derived block count reserves memory for: the scheduler's limits, or these where it has none.
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

// The profile's table of what the recipe's packing takes between steps, with any budget; "": there is none.
std::string measured_rest(const PoolPlan& pool) {
  const Recipe& recipe = pool.recipe;
  const std::string name = at_rest_of(recipe.name);
  if (pool.cost.profile == nullptr || !pool.cost.profile->policy.has(name)) return "";
  const std::vector<std::string> names = recipe_names();
  const bool is_ours = std::binary_search(names.begin(), names.end(), recipe.name);
  return is_ours && load_recipe(recipe.name).parts == recipe.parts ? name : "";
}

// GPU bytes for KV of one rank: of its derived blocks; where their number is given, all memory of its GPUs.
double kv_memory_bytes(const PoolPlan& pool) {
  const MemorySetup& memory = pool.memory;
  if (memory.is_derived) return static_cast<double>(memory.num_blocks) * static_cast<double>(memory.block_bytes);
  return static_cast<double>(pool.cost.hardware.memory_bytes) * pool.cost.parallel.gpus_of_rank();
}

// GPU bytes that a block's token accounts for, of `gpu_bytes` in all: its own, or the share that it takes of CPU memory or disk if larger.
double token_share_bytes(const RecipePages& pages, const CostSetup& cost, double gpu_bytes) {
  const auto share = [&](double token_bytes, std::int64_t place_bytes) {
    return token_bytes / (static_cast<double>(place_bytes) * cost.parallel.gpus_of_rank()) * gpu_bytes;
  };
  return std::max({pages.token_bytes, share(pages.host_token_bytes, cost.hardware.cpu_memory_bytes),
                   share(pages.disk_token_bytes, cost.hardware.disk_bytes)});
}

// InputError: a given number of blocks needs more of a place than the card has.
void check_place(const MemorySetup& memory, const CostSetup& cost, const char* place, const char* key, double token_bytes,
                 std::int64_t place_bytes) {
  const double per_block = token_bytes * memory.block_tokens, has = static_cast<double>(place_bytes) * cost.parallel.gpus_of_rank();
  const double needs = per_block * static_cast<double>(memory.num_blocks);
  if (memory.is_derived || needs <= has) return;
  throw InputError(
      fmt::format("the policy keeps {:.0f} bytes of a token {}, so {} blocks need {:.4g} bytes there, and {} has {:.4g}: {} blocks fit; "
                  "lower 'memory: {{num_blocks: N}}', leave it out, or raise '{}' in {}",
                  token_bytes, place, memory.num_blocks, needs, cost.hardware.name, has, static_cast<std::int64_t>(has / per_block), key,
                  cost.hardware.file));
}

// The number of blocks of the policy's own size. A given number stays.
std::int64_t policy_blocks(const MemorySetup& memory, double gpu_bytes, double share_bytes) {
  if (!memory.is_derived) return memory.num_blocks;
  const double blocks = gpu_bytes / (share_bytes * memory.block_tokens);
  if (blocks >= static_cast<double>(kMaxBlocks))
    throw InputError(
        fmt::format("the policy keeps so little of a token that memory holds {:.3g} blocks of KV, more than the {} that a "
                    "run may have; give 'memory: {{num_blocks: N}}'",
                    blocks, kMaxBlocks));
  return static_cast<std::int64_t>(blocks);
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
    memory.block_bytes = memory.block_tokens * layers_with(cost.model, AttentionKind::kFull) * kv_bytes_per_layer_token(cost.model);
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

Recipe read_named_recipe(Params& p, const std::string& purpose) {
  if (!p.has("kv_policy")) p.fail("missing key 'kv_policy': which recipe to " + purpose + " (kvlab list kv)");
  Params policy = p.child_or_text("kv_policy", "recipe", "kv_policy");
  return read_recipe(policy);
}

void require_engine(const Params& p, const Recipe& recipe) {
  if (!recipe.runs_in("engine"))
    p.fail_at("kv_policy",
              fmt::format("recipe '{}' does not run in the engine; it runs in: {}", recipe.name, fmt::join(recipe.hosts, ", ")));
}

namespace {

// Plain paged KV: a layer keeps all tokens, or those that its kind needs.
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

// Recipes work on K and V per head, the same in every layer.
void check_policy_fits(const KvLayout& layout, const PoolPlan& pool) {
  const ModelSpec& m = pool.cost.model;
  if (m.latent.exists())
    throw InputError(
        fmt::format("recipe '{}' acts on K and V per head, which {} with latent attention does not cache; write 'kv_policy: full'",
                    pool.recipe.name, m.name));
  if (!layout.is_one_group() || m.linear.exists())
    throw InputError(fmt::format("recipe '{}' takes all layers to be alike, and {} has layers of several kinds{}", pool.recipe.name, m.name,
                                 m.linear.exists() ? "" : "; 'memory: {hybrid: false}' keeps all tokens in every layer"));
}

}  // namespace

void read_kv_policy(Params& p, PoolPlan& pool, std::vector<std::string>& remarks) {
  Params policy = p.child_or_text("kv_policy", "recipe", "kv_policy");
  pool.recipe = read_recipe(policy);
  const Recipe& recipe = pool.recipe;
  const KvLayout layout = kv_layout(pool.cost.model, pool.cost.parallel, pool.memory.block_tokens, pool.is_hybrid);
  if (recipe.keeps_everything()) return use_plain_cache(layout, pool, remarks);
  const ModelSpec& m = pool.cost.model;
  const auto narrow = [](std::int64_t x) { return static_cast<std::int32_t>(x); };
  const ModelShape shape{narrow(m.layers),   narrow(m.q_heads), narrow(m.kv_heads),
                         narrow(m.head_dim), narrow(m.hidden),  narrow(bits(m.kv_dtype) / 8)};
  MemorySetup& memory = pool.memory;
  const KvReads reads = pool.cost.profile != nullptr ? pool.cost.profile->kv_reads : KvReads::kStored;
  try {
    check_policy_fits(layout, pool);
    const RecipePages pages = recipe_pages(recipe, shape, memory.block_tokens);
    const double gpu_bytes = kv_memory_bytes(pool), share_bytes = token_share_bytes(pages, pool.cost, gpu_bytes);
    pool.make_footprint = [recipe, shape, block_tokens = memory.block_tokens, reads, at_rest = measured_rest(pool), share_bytes] {
      return std::make_unique<RecipeFootprint>(recipe, shape, block_tokens, reads, at_rest, share_bytes);
    };
    check_place(memory, pool.cost, "in CPU memory", "cpu_memory_bytes", pages.host_token_bytes, pool.cost.hardware.cpu_memory_bytes);
    check_place(memory, pool.cost, "on disk", "disk_bytes", pages.disk_token_bytes, pool.cost.hardware.disk_bytes);
    pool.make_footprint();
    memory.num_blocks = policy_blocks(memory, gpu_bytes, share_bytes);
    memory.block_bytes = std::llround(pages.token_bytes * memory.block_tokens);
  } catch (const InputError& e) {
    p.fail_at("kv_policy", e.what());
  }
}

}  // namespace kvlab
