#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "app/runs/plan/serving_plan.h"
#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/read_file.h"

namespace kvlab {

namespace {

constexpr const char* kRoles[] = {"encode", "prefill", "decode", "both"};

const std::set<std::string>& keys_of(const std::string& role) { return role == "encode" ? system_encode_pool_keys() : system_pool_keys(); }

std::set<std::string> with(std::set<std::string> keys, const std::set<std::string>& more) {
  keys.insert(more.begin(), more.end());
  return keys;
}

// Refuses unknown keys; values are checked on use.
ServingSystem::Layer read_layer(Params parts) {
  parts.allow(system_keys());
  Params pools = parts.optional_child("pools", "pools");
  ServingSystem::Layer layer{std::move(parts), {}};
  for (const char* role : kRoles) {
    Params pool = pools.optional_child(role, "pool '" + std::string(role) + "'");
    pool.allow(keys_of(role));
    pool.reject_unread();
    if (pools.has(role)) layer.pools.emplace_back(role, pool);
  }
  pools.reject_unread();
  layer.parts.reject_unread();
  return layer;
}

Params open_system(const std::string& file, const std::string& name) {
  return {shared_config(file), std::make_shared<Choices>(), "system '" + name + "'"};
}

SystemCard read_card(Params& file, const std::string& name) {
  SystemCard card;
  card.name = name;
  card.summary = file.text("summary", "what it does");
  card.paper = file.text("paper", "where it is published");
  card.confidence = file.text("confidence", "", "where the description comes from");
  card.notes = file.text("notes", "", "what is not as in the paper");
  return card;
}

std::string find_system(const std::string& name) { return find_spec_file(name, systems_folder(), "system"); }

// A pool's keys, then keys of the whole experiment.
const std::set<std::string> kPoolKeys{"hardware",  "parallel", "engine",        "profile",        "scheduler",  "order",
                                      "predictor", "memory",   "max_model_len", "prefix_caching", "block_cache"};
const std::set<std::string> kSharedKeys{"model", "kv_policy", "quantization"};

constexpr std::uint32_t kMostReplicas = 100'000;
constexpr const char* kReplicas = "copies of the model, each with its own scheduler and memory";

struct Member {
  std::string name;
  Params params;
  std::uint32_t replicas = 1;
  Roles roles = {};  // not of an encode pool
};

struct Members {
  std::vector<Member> pools, encode_pools;
};

// nullopt: an encode pool.
std::optional<Roles> read_role(Params& pools, Params& pool, const std::string& name) {
  const std::vector<std::string> roles{"prefill", "decode", "both", "encode"};
  const auto named = std::find(roles.begin(), roles.end(), name);
  if (named == roles.end() && !pool.has("role"))
    pools.fail_at(name, fmt::format("pool '{}' has no role: give it 'role: encode', 'role: prefill', 'role: decode' or 'role: both', or "
                                    "one of these as its name",
                                    name));
  const std::size_t by_name = named == roles.end() ? 0 : static_cast<std::size_t>(named - roles.begin());
  const std::size_t role = pool.choice("role", roles, by_name, "stages that its replicas take; by default the pool's name");
  if (role == 3) return std::nullopt;
  return Roles{role != 1, role != 0};
}

// Order: the pool, the experiment, the system.
void add_fallbacks(Params& pool, const Params& own, const ServingSystem& system, const std::string& role) {
  std::set<std::string> of_experiment = kPoolKeys;
  of_experiment.insert(kSharedKeys.begin(), kSharedKeys.end());
  pool.fall_back_on(own, of_experiment);
  for (const ServingSystem::Layer& layer : system.layers) {
    if (const Params* const of_role = layer.of_role(role)) pool.fall_back_on(*of_role, system_pool_keys());
    pool.fall_back_on(layer.parts, system_pool_keys());
  }
}

// No language model.
Member read_encode_member(const std::string& name, Params pool, const Params& own, const ServingSystem& system) {
  for (const std::string& key : kPoolKeys)
    if (key != "hardware" && pool.has(key))
      pool.fail_at(key,
                   fmt::format("pool '{}' encodes images and runs no step of the language model, so '{}' means nothing there: it takes "
                               "'replicas', 'hardware' and 'batch_images'",
                               name, key));
  const auto replicas = pool.optional<std::uint32_t>("replicas", 1, 1, kMostReplicas, "GPUs, each with an encoder and a queue of its own");
  pool.fall_back_on(own, {"hardware"});
  for (const ServingSystem::Layer& layer : system.layers)
    if (const Params* const of_role = layer.of_role("encode")) pool.fall_back_on(*of_role, system_encode_pool_keys());
  return {name, std::move(pool), replicas};
}

Members list_pools(Params& p, const Params& own, const ServingSystem& system) {
  Params pools = p.optional_child("pools", "pools");
  const std::vector<std::string> names = p.has("pools") ? pools.keys() : system.roles();
  if (names.empty())
    p.fail_at("pools", "'pools' names no pool: write it as 'pools: {prefill: {replicas: 1}, decode: {replicas: 1}}', or leave it out");
  Members members;
  for (const std::string& name : names) {
    Params pool = pools.optional_child(name, "pool '" + name + "'");
    for (const std::string& key : kSharedKeys)
      if (pool.has(key)) pool.fail_at(key, fmt::format("'{}' is the experiment's, the same for all pools: write it at the top level", key));
    const std::optional<Roles> roles = read_role(pools, pool, name);
    if (!roles) {
      members.encode_pools.push_back(read_encode_member(name, std::move(pool), own, system));
      continue;
    }
    Member member{name, pool, 1, *roles};
    member.replicas = pool.optional<std::uint32_t>("replicas", 1, 1, kMostReplicas, kReplicas);
    add_fallbacks(member.params, own, system, role_name(member.roles));
    members.pools.push_back(std::move(member));
  }
  pools.reject_unread();
  return members;
}

void refuse_unused(Params& p, Params& own, const Members& members) {
  if (p.has("replicas")) p.fail_at("replicas", "'replicas' is of each pool where there are 'pools': write it in each of them");
  for (const std::string& key : kPoolKeys) {
    const auto takes = [&](const auto& m) { return !m.params.has_own(key); };
    const bool is_used = std::any_of(members.pools.begin(), members.pools.end(), takes) ||
                         (key == "hardware" && std::any_of(members.encode_pools.begin(), members.encode_pools.end(), takes));
    if (own.has(key) && !is_used)
      own.fail_at(key, fmt::format("'{}' is not used, since every pool has its own: leave it out here, or in a pool", key));
  }
}

void require_stages(const Params& p, const std::vector<Member>& members) {
  const char* const at = p.has("pools") ? "pools" : "system";
  for (const Stage stage : {Stage::kPrefill, Stage::kDecode}) {
    if (std::any_of(members.begin(), members.end(), [&](const Member& m) { return m.roles.takes(stage); })) continue;
    const char* const role = stage == Stage::kPrefill ? "prefill" : "decode";
    p.fail_at(at, fmt::format("no pool takes the stage '{}': give one 'role: {}' or 'role: both'", role, role));
  }
}

// A rank's GPUs share images.
void encode_on(PoolPlan& pool, const VisionEncoder& encoder) {
  pool.encode = [encoder, hardware = pool.cost.hardware, gpus = pool.cost.parallel.gpus_of_rank()](std::int64_t images) {
    return encode_cost(encoder, hardware, images, gpus);
  };
}

// A pool that receives KV must be paged.
void require_paged(const Params& pool, const PoolPlan& plan, bool changes_roles, bool has_prefill_pool) {
  const bool takes_kv = changes_roles || (plan.roles.decode && has_prefill_pool);
  if (!takes_kv || !plan.make_scheduler()->wants_contiguous_memory()) return;
  pool.fail_at(
      "scheduler",
      fmt::format("{}, which this scheduler cannot do: it keeps the KV of a request in one piece; choose one with paged memory, "
                  "such as vllm_v1",
                  changes_roles ? fmt::format("the dispatcher changes roles, so that pool '{}' must take KV from others", plan.name)
                                : fmt::format("pool '{}' takes KV from others", plan.name)));
}

// The experiment's profile is of the experiment's card.
void require_own_profile(const Params& pool, const PoolPlan& plan) {
  if (plan.cost.profile == nullptr || !pool.has_own("hardware") || pool.has_own("profile")) return;
  pool.fail_at("hardware",
               fmt::format("pool '{}' has hardware of its own, and the experiment's 'profile' is of another card: give the pool "
                           "its 'profile' too, roofline where there are no tables",
                           plan.name));
}

// Pools exchange blocks.
void require_alike(const Params& pool, const PoolPlan& plan, const PoolPlan& first) {
  if (plan.cost.model.name != first.cost.model.name)
    pool.fail_at("profile", fmt::format("pool '{}' serves {} and pool '{}' {}: name the 'model' at the top level", plan.name,
                                        plan.cost.model.name, first.name, first.cost.model.name));
  if (plan.memory.block_tokens != first.memory.block_tokens)
    pool.fail_at("memory", fmt::format("pool '{}' has blocks of {} tokens and pool '{}' of {}: KV moves in blocks, so give all pools the "
                                       "same 'block_tokens'",
                                       plan.name, plan.memory.block_tokens, first.name, first.memory.block_tokens));
  if (plan.memory.block_bytes != first.memory.block_bytes)
    pool.fail_at("memory", fmt::format("a block of pool '{}' has {} bytes and one of pool '{}' {}: KV moves in blocks, so give all pools "
                                       "the same 'hybrid'",
                                       plan.name, plan.memory.block_bytes, first.name, first.memory.block_bytes));
}

// An oracle block cache knows the future of a single rank.
void require_one_rank(const Params& pool, const PoolPlan& plan, std::uint64_t ranks) {
  if (ranks == 1 || !plan.make_block_cache()->needs_future()) return;
  pool.fail_at("block_cache", fmt::format("an oracle block cache needs one replica, since its future is that of one pool; the pools have "
                                          "{} schedulers in all",
                                          ranks));
}

// encoder_bytes: vision encoder of every replica; 0: none.
void read_members(std::vector<Member>& members, std::int64_t encoder_bytes, ServingPlan& plan) {
  const bool changes_roles = plan.setup.make_dispatcher()->changes_roles();
  const bool has_prefill_pool = std::any_of(members.begin(), members.end(), [](const Member& m) { return !m.roles.decode; });
  for (Member& member : members) {
    PoolPlan pool = read_pool(member.params, plan.setup.seed, /*is_only=*/false, plan.remarks, encoder_bytes);
    pool.name = member.name;
    pool.roles = member.roles;
    pool.num_replicas = member.replicas;
    if (encoder_bytes > 0) encode_on(pool, plan.images->encoder);
    member.params.reject_unread();
    require_own_profile(member.params, pool);
    require_paged(member.params, pool, changes_roles, has_prefill_pool);
    if (!plan.pools.empty()) require_alike(member.params, pool, plan.pools.front());
    plan.setup.pools.push_back(pool);
    plan.setup.pool_costs.push_back(pool);
    plan.pools.push_back(std::move(pool));
  }
  for (std::size_t i = 0; i < members.size(); ++i) require_one_rank(members[i].params, plan.pools[i], num_ranks(plan.setup));
}

void read_encode_members(std::vector<Member>& members, ServingPlan& plan) {
  for (Member& member : members) {
    EncodePoolPlan pool = read_encode_pool(member.params, member.name, plan.images ? &*plan.images : nullptr, plan.pools.front().cost);
    pool.num_replicas = member.replicas;
    plan.encode_pools.push_back(std::move(pool));
  }
}

// Equal pools make equal remarks.
void drop_repeated(std::vector<std::string>& texts) {
  std::set<std::string> seen;
  std::erase_if(texts, [&](const std::string& text) { return !seen.insert(text).second; });
}

void read_only_pool(Params& p, ServingPlan& plan) {
  SimSetup& setup = plan.setup;
  p.optional_child("pools", "pools");
  const auto replicas = p.optional<std::uint32_t>("replicas", 1, 1, kMostReplicas, kReplicas);
  PoolPlan pool = read_pool(p, setup.seed, /*is_only=*/true, plan.remarks, plan.images ? plan.images->encoder.weight_bytes() : 0);
  if (plan.images) encode_on(pool, plan.images->encoder);
  pool.num_replicas = replicas;
  static_cast<PoolSetup&>(setup) = static_cast<const PoolSetup&>(pool);
  static_cast<SimCosts&>(setup) = static_cast<const SimCosts&>(pool);
  if (pool.make_block_cache()->needs_future() && setup.num_replicas * setup.ranks != 1)
    p.fail_at("block_cache", fmt::format("an oracle block cache needs one replica, since its future is that of one pool; 'replicas' = {}{}",
                                         setup.num_replicas, setup.ranks > 1 ? fmt::format(" of {} ranks", setup.ranks) : ""));
  plan.pools.push_back(std::move(pool));
}

}  // namespace

const std::set<std::string>& system_pool_keys() {
  static const std::set<std::string> keys{"scheduler", "order", "predictor", "block_cache", "prefix_caching"};
  return keys;
}

const std::set<std::string>& system_encode_pool_keys() {
  static const std::set<std::string> keys{"batch_images"};
  return keys;
}

const std::set<std::string>& system_keys() {
  static const std::set<std::string> keys = with(system_pool_keys(), {"dispatcher", "transfer", "store"});
  return keys;
}

const Params* ServingSystem::Layer::of_role(const std::string& role) const {
  const auto found = std::find_if(pools.begin(), pools.end(), [&](const auto& pool) { return pool.first == role; });
  return found == pools.end() ? nullptr : &found->second;
}

std::vector<std::string> ServingSystem::roles() const {
  std::vector<std::string> all;
  for (const char* role : kRoles)
    if (std::any_of(layers.begin(), layers.end(), [&](const Layer& layer) { return layer.of_role(role) != nullptr; }))
      all.emplace_back(role);
  return all;
}

ServingSystem read_system(Params& p) {
  ServingSystem system;
  if (!p.has("system")) {
    p.text("system", "", "a published serving system: sets what the experiment does not");
    return system;
  }
  auto [name, own] = p.named("system", "", "a published serving system: sets what the experiment does not");
  std::string path;
  try {
    const std::string named = p.resolve_file(name);
    path = find_system(is_file(named) ? named : name);
  } catch (const InputError& e) {
    p.fail_at("system", e.what());
  }
  name = std::filesystem::path(path).stem().string();
  Params file = open_system(path, name);
  read_card(file, name);
  system.name = name;
  system.layers.push_back(read_layer(own));
  system.layers.push_back(read_layer(file));
  return system;
}

SystemCard load_system_card(const std::string& name) {
  Params file = open_system(find_system(name), name);
  SystemCard card = read_card(file, name);
  const ServingSystem::Layer layer = read_layer(file);
  const auto add = [&card](const Params& parts, const std::string& prefix, const std::set<std::string>& keys) {
    for (const std::string& key : parts.keys())
      if (keys.contains(key)) card.parts.emplace_back(prefix + key, parts.inline_text(key, ""));
  };
  add(layer.parts, "", system_keys());
  for (const auto& [role, pool] : layer.pools) {
    if (pool.keys().empty()) card.parts.emplace_back(role, "as the experiment says");
    add(pool, role + " ", keys_of(role));
  }
  return card;
}

std::vector<std::string> system_names() { return yaml_names(systems_folder()); }

bool has_pools(const Params& p, const ServingSystem& system) { return p.has("pools") || !system.roles().empty(); }

void read_pools(Params& p, Params& own, const ServingSystem& system, ServingPlan& plan) {
  if (!has_pools(p, system)) {
    read_only_pool(p, plan);
  } else {
    Members members = list_pools(p, own, system);
    refuse_unused(p, own, members);
    require_stages(p, members.pools);
    p.allow(kPoolKeys);  // inherited by pools
    p.allow(kSharedKeys);
    read_members(members.pools, plan.images && members.encode_pools.empty() ? plan.images->encoder.weight_bytes() : 0, plan);
    read_encode_members(members.encode_pools, plan);
    drop_repeated(plan.remarks);
  }
  if (plan.images) {
    const ModelSpec& model = plan.pools.front().cost.model;
    plan.setup.images.tokens_each = plan.images->tokens_each;
    plan.setup.images.bytes_each = plan.images->tokens_each * model.hidden * model.activation_bytes();
  }
  plan.cost = plan.pools.front().cost;
  plan.recipe = plan.pools.front().recipe;
}

std::uint64_t num_replicas(const HostSetup& setup) {
  std::uint64_t replicas = 0;
  for (std::size_t i = 0; i < setup.num_pools(); ++i) replicas += setup.pool(i).num_replicas;
  return replicas;
}

std::uint64_t num_ranks(const HostSetup& setup) {
  std::uint64_t ranks = 0;
  for (std::size_t i = 0; i < setup.num_pools(); ++i) ranks += std::uint64_t{setup.pool(i).num_replicas} * setup.pool(i).ranks;
  return ranks;
}

}  // namespace kvlab
