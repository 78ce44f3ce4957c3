#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <utility>
#include <vector>

#include "app/runs/plan/kv_memory.h"
#include "base/error.h"
#include "policies/kv/policy/policy.h"
#include "sim/cost/profile.h"
#include "sim/kv_cost/recipe_footprint.h"

namespace kvlab {

namespace {

struct Shelf {
  std::mutex mutex;
  std::vector<std::unique_ptr<Footprint>> free;
  std::function<std::unique_ptr<Footprint>()> make;

  std::unique_ptr<Footprint> take() {
    {
      const std::lock_guard lock(mutex);
      if (!free.empty()) {
        std::unique_ptr<Footprint> last = std::move(free.back());
        free.pop_back();
        return last;
      }
    }
    return make();
  }
  void put(std::unique_ptr<Footprint> footprint) {
    const std::lock_guard lock(mutex);
    free.push_back(std::move(footprint));
  }
};

class Lent final : public Footprint {
 public:
  explicit Lent(std::shared_ptr<Shelf> shelf) : shelf_(std::move(shelf)), own_(shelf_->take()) {}
  ~Lent() override { shelf_->put(std::move(own_)); }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  FootprintStep step(const SeqState& seq) override { return own_->step(seq); }
  void charge(std::span<SeqState> batch, PolicyWork& work) override { own_->charge(batch, work); }
  std::int64_t pages_at_end(std::int32_t prompt_tokens, std::int32_t seen_tokens) override {
    return own_->pages_at_end(prompt_tokens, seen_tokens);
  }
  [[nodiscard]] bool keeps_everything() const override { return own_->keeps_everything(); }
  [[nodiscard]] bool is_steady_in_decode() const override { return own_->is_steady_in_decode(); }
  [[nodiscard]] bool looks_ahead() const override { return own_->looks_ahead(); }
  std::int64_t decode_run(const SeqState& seq, std::int64_t most, std::vector<FootprintStep>& steps) override {
    return own_->decode_run(seq, most, steps);
  }
  void charge_ahead(std::span<const SeqState> batch, std::span<const std::span<const FootprintStep>> runs, std::int64_t steps,
                    DecodeAhead& ahead) override {
    own_->charge_ahead(batch, runs, steps, ahead);
  }
  [[nodiscard]] bool returns_pages() const override { return own_->returns_pages(); }
  [[nodiscard]] bool shares_prefixes() const override { return own_->shares_prefixes(); }
  [[nodiscard]] std::int32_t fresh_tokens() const override { return own_->fresh_tokens(); }
  [[nodiscard]] bool exceeds_budget(std::int32_t prompt_tokens) const override { return own_->exceeds_budget(prompt_tokens); }
  [[nodiscard]] bool unnamed_rest() const override { return own_->unnamed_rest(); }
  [[nodiscard]] std::vector<std::int32_t> rows_of(std::int32_t pattern) const override { return own_->rows_of(pattern); }
  std::int32_t pattern_of(const std::vector<std::int32_t>& rows) override { return own_->pattern_of(rows); }
  [[nodiscard]] OnPreempt on_preempt() const override { return own_->on_preempt(); }

 private:
  std::shared_ptr<Shelf> shelf_;
  std::unique_ptr<Footprint> own_;
};

// Table of packing between steps, with any budget; "": none.
std::string measured_rest(const PoolPlan& pool) {
  const Recipe& recipe = pool.recipe;
  const std::string name = at_rest_of(recipe.name);
  if (pool.cost.profile == nullptr || !pool.cost.profile->policy.has(name)) return "";
  const std::vector<std::string> names = recipe_names();
  const bool is_ours = std::binary_search(names.begin(), names.end(), recipe.name);
  return is_ours && load_recipe(recipe.name).parts == recipe.parts ? name : "";
}

// One rank: derived blocks; if their number is given, all memory of its GPUs.
double kv_memory_bytes(const PoolPlan& pool) {
  const MemorySetup& memory = pool.memory;
  if (memory.is_derived) return static_cast<double>(memory.num_blocks) * static_cast<double>(memory.block_bytes);
  return static_cast<double>(pool.cost.hardware.memory_bytes) * pool.cost.parallel.gpus_of_rank();
}

// Per token of a block: its own bytes, or its share of CPU memory or disk in `gpu_bytes` if larger.
double token_share_bytes(const RecipePages& pages, const CostSetup& cost, double gpu_bytes) {
  const auto share = [&](double token_bytes, std::int64_t place_bytes) {
    return token_bytes / (static_cast<double>(place_bytes) * cost.parallel.gpus_of_rank()) * gpu_bytes;
  };
  return std::max({pages.token_bytes, share(pages.host_token_bytes, cost.hardware.cpu_memory_bytes),
                   share(pages.disk_token_bytes, cost.hardware.disk_bytes)});
}

// Throws InputError if a given number of blocks exceeds a place.
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

// In blocks of the policy's size. A given number stays.
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

// K and V per head, the same in every layer.
void check_policy_fits(const KvLayout& layout, const PoolPlan& pool) {
  const ModelSpec& m = pool.cost.model;
  if (m.latent.exists())
    throw InputError(
        fmt::format("recipe '{}' acts on K and V per head, which {} with latent attention does not cache; write 'kv_policy: full'",
                    pool.recipe.name, m.name));
  if (m.compressed.exists() || m.index.exists() || !m.layer_shapes.empty())
    throw InputError(
        fmt::format("recipe '{}' takes all layers to cache the same K and V per head, which {} does not; write 'kv_policy: full'",
                    pool.recipe.name, m.name));
  if (!layout.is_one_group() || m.linear.exists())
    throw InputError(fmt::format("recipe '{}' takes all layers to be alike, and {} has layers of several kinds{}", pool.recipe.name, m.name,
                                 m.linear.exists() ? "" : "; 'memory: {hybrid: false}' keeps all tokens in every layer"));
}

}  // namespace

std::function<std::unique_ptr<Footprint>()> lending(std::function<std::unique_ptr<Footprint>()> make) {
  auto shelf = std::make_shared<Shelf>();
  shelf->make = std::move(make);
  return [shelf] { return std::make_unique<Lent>(shelf); };
}

void use_recipe(Params& p, const KvLayout& layout, PoolPlan& pool) {
  const Recipe& recipe = pool.recipe;
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
    if (reads != KvReads::kUnpacked) pool.make_footprint = lending(pool.make_footprint);  // unpacking adds up from step to step
    check_place(memory, pool.cost, "in CPU memory", "cpu_memory_bytes", pages.host_token_bytes, pool.cost.hardware.cpu_memory_bytes);
    check_place(memory, pool.cost, "on disk", "disk_bytes", pages.disk_token_bytes, pool.cost.hardware.disk_bytes);
    pool.make_footprint();
    memory.num_blocks = policy_blocks(memory, gpu_bytes, share_bytes);
    memory.block_bytes = std::llround(pages.token_bytes * memory.block_tokens);
  } catch (const InputError& e) {
    p.fail_at("kv_policy", e.what());
  }
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

}  // namespace kvlab
