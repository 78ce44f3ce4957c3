#include <fmt/format.h>

#include "app/runs/plan/kv_memory.h"
#include "app/runs/plan/serving_plan.h"
#include "base/config/spec_file.h"
#include "base/hugging_face.h"
#include "base/text.h"
#include "policies/block_cache/block_cache.h"
#include "policies/order/order.h"
#include "policies/predictor/predictor.h"
#include "policies/scheduler/scheduler.h"
#include "sim/cost/model_file.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

// With model and hardware, which the profile may lack.
std::string lint_command(const Params& p, const std::string& folder) {
  std::string command = "kvlab profile lint " + folder;
  for (const char* key : {"model", "hardware"}) {
    if (!p.has(key)) continue;
    command += fmt::format(" --{} {}", key, file_or_name(p, p.inline_text(key, "")));
  }
  return command;
}

std::vector<std::string> remarks_on(const Parallel& parallel, const ModelSpec& model) {
  std::vector<std::string> remarks;
  if (const int ranks = parallel.data_ranks(); ranks > 1)
    remarks.push_back(
        fmt::format("parallel: ep = {} with tp = {} makes {} data-parallel ranks for attention, which share the tokens of one scheduler "
                    "evenly: its limits are of the whole replica, {} times those of a rank; 'dp: {}' gives each rank its own scheduler and "
                    "KV cache, as vLLM does",
                    parallel.ep, parallel.tp, ranks, ranks, ranks));
  if (parallel.dp > 1 && !model.is_moe())
    remarks.push_back(
        fmt::format("parallel: dp = {} with {}, which has no experts: ranks share arrivals and do not wait for each other, as "
                    "in vLLM",
                    parallel.dp, model.name));
  return remarks;
}

// load_balance_method with replicas of one rank.
std::string remark_on_unused_balance(const Params& p, const Parallel& parallel) {
  if (parallel.dp > 1 || !p.has_within("parallel", "load_balance_method")) return "";
  return "parallel: 'load_balance_method' changes nothing with dp = 1: a replica has one rank, and 'dispatcher' chooses the replica";
}

void read_costs(Params& p, PoolPlan& pool, std::vector<std::string>& remarks) {
  pool.cost = read_cost_setup(p);
  if (const std::string model = p.inline_text("model", ""); is_hub_id(model))
    remarks.push_back("model: " + find_model_file(file_or_name(p, model), profiles_folder() + "/models").remark);
  if (pool.cost.profile) pool.lint = lint_command(p, pool.cost.profile->file);
  for (const std::string& remark : hardware_remarks(pool.cost.hardware))
    remarks.push_back(fmt::format("hardware {}: {}", pool.cost.hardware.name, remark));
  const Parallel& parallel = pool.cost.parallel;
  pool.ranks = static_cast<std::uint32_t>(parallel.dp);
  pool.load_balance = parallel.load_balance;
  pool.steps_together = pool.cost.model.is_moe();
  for (const std::string& remark : remarks_on(parallel, pool.cost.model)) remarks.push_back(remark);
  if (const std::string unused = remark_on_unused_balance(p, parallel); !unused.empty()) remarks.push_back(unused);
  pool.make_cost_model = [cost = pool.cost] { return make_cost_model(cost); };
  pool.make_cost_model();
}

// Limits that the scheduler derives from the GPU; "": none.
std::string remark_on_engine_limits(const Params& p, const std::string& gpu) {
  const std::string pool = p.path().empty() ? "" : p.path() + ".";
  std::vector<std::string> limits;
  std::string scheduler;
  for (const char* const name : {"vllm_v1", "sglang"}) {
    for (const char* const key : {"budget_tokens", "chunk_tokens", "max_num_seqs"}) {
      const auto found = p.defaults().find(fmt::format("{}scheduler.{}.{}", pool, name, key));
      if (found == p.defaults().end() || found->second == "0") continue;
      scheduler = name;
      limits.push_back(fmt::format("{} {}", key, found->second));
    }
  }
  return limits.empty() ? "" : fmt::format("{}: {} by default on {}", scheduler, join(limits, " and "), gpu);
}

void read_policies(Params& p, std::uint64_t seed, PoolPlan& pool, std::vector<std::string>& remarks) {
  const CostSetup& cost = pool.cost;
  const EngineSetting setting{cost.hardware.is_large(),   cost.engine.host.overlaps, cost.model.layers, seed,
                              cost.hardware.memory_bytes, cost.parallel.tp};
  const std::string own_scheduler = cost.engine.engine.name == "sglang" ? "sglang" : "";  // default of 'scheduler'
  pool.make_scheduler =
      policy_factory<SchedulerRegistry>(p, "scheduler", own_scheduler, "scheduler", "plans each step of a replica",
                                        [&](const std::string& name, Params& own) { prefer_engine_defaults(name, setting, own); });
  const bool plans_layers = pool.make_scheduler()->plans_layers();
  if (const std::string limits = remark_on_engine_limits(p, cost.hardware.name); !limits.empty()) remarks.push_back(limits);
  const bool steps_together = cost.parallel.dp > 1 && cost.model.is_moe();
  if (plans_layers && (cost.parallel.pp > 1 || steps_together))
    p.fail_at("scheduler",
              fmt::format("this scheduler plans some of the layers, and {} run whole steps: leave '{}' out of 'parallel', or choose "
                          "a scheduler of whole steps, for example vllm_v1",
                          cost.parallel.pp > 1 ? "stages of a pipeline" : "ranks that step together", cost.parallel.pp > 1 ? "pp" : "dp"));
  pool.make_block_cache =
      policy_factory<BlockCacheRegistry>(p, "block_cache", "lru", "block cache", "which unreferenced block is given up");
  if (!pool.make_block_cache()->needs_future()) return;
  Params none = Params::empty("block cache 'lru'");  // the first pass of an oracle uses lru
  BlockCacheRegistry::make("lru", none, "block cache");
}

// fcfs needs no maker.
void read_order(Params& p, bool is_only, PoolPlan& pool, std::vector<std::string>& remarks) {
  pool.make_predictor = policy_factory<PredictorRegistry>(p, "predictor", "exact", "predictor",
                                                          "estimates output lengths for orders and schedulers that ask for them");
  pool.make_order = policy_factory<OrderRegistry>(p, "order", "fcfs", "order", "whose turn it is, and who gives way");
  const std::unique_ptr<Order> order = pool.make_order();
  if (order->overtaking() && !pool.make_scheduler()->lets_overtake()) {
    p.fail_at("order",
              "this order preempts running requests for better waiting ones, which this scheduler never does: choose 'scheduler: vllm_v1', "
              "'sarathi', 'fastgen' or 'layered_prefill' (host: sim), or an order that lets running requests stay (docs/orders.md)");
  }
  if (is_only && p.has("predictor") && !uses_predictor(pool))
    remarks.emplace_back("'predictor' changes nothing: neither the order nor the scheduler asks for output lengths");
}

void read_longest(Params& p, PoolPlan& pool) {
  const ModelSpec& model = pool.cost.model;
  const std::int64_t longest = model.max_tokens > 0 ? model.max_tokens : 1 << 20;
  pool.max_model_len = p.optional<std::int32_t>("max_model_len", static_cast<std::int32_t>(longest), 2, 1 << 30,
                                                "most tokens of a request, prompt and output; at most the model's own");
  if (model.max_tokens > 0 && pool.max_model_len > model.max_tokens && !p.is_describing())
    p.fail_at("max_model_len",
              fmt::format("'max_model_len' = {} is more than the {} tokens of {} (max_position_embeddings and RoPE scaling)",
                          pool.max_model_len, model.max_tokens, model.name));
}

}  // namespace

PoolPlan read_pool(Params& p, std::uint64_t seed, bool is_only, std::vector<std::string>& remarks, std::int64_t encoder_bytes) {
  PoolPlan pool;
  pool.encoder_bytes = encoder_bytes;
  read_costs(p, pool, remarks);
  read_policies(p, seed, pool, remarks);
  read_order(p, is_only, pool, remarks);
  read_longest(p, pool);
  const std::int64_t host_bytes = read_memory(p, pool);
  read_kv_policy(p, pool, remarks);
  if (pool.has_eight_bit_copies) set_eight_bit_copies(p, pool);
  note_unused_swaps(pool, remarks);
  pool.memory.host_blocks = host_bytes / pool.memory.copy_bytes();  // in the size of the policy's or the copies' format
  return pool;
}

bool uses_predictor(const PoolSetup& pool) { return pool.make_order()->uses_predictor() || pool.make_scheduler()->uses_predictor(); }

const char* role_name(const Roles& roles) { return roles.prefill && roles.decode ? "both" : roles.prefill ? "prefill" : "decode"; }

}  // namespace kvlab
