#include "app/runs/plan/serving_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "app/runs/accuracy/served_model.h"
#include "app/runs/plan/slo.h"
#include "base/config/spec_file.h"
#include "base/hash.h"
#include "base/read_file.h"
#include "base/text.h"
#include "policies/block_cache/block_cache.h"
#include "traces/image_tokens.h"

namespace kvlab {

std::optional<ImagePlan> read_images(Params& p) {
  Params images = p.optional_child("images", "images");
  if (!p.has("images")) return std::nullopt;
  ImagePlan plan;
  plan.tokens_each = images.required<std::int32_t>("tokens_each", 1, 1 << 20, "prompt tokens of an image, after those of the text");
  plan.encoder = read_vision_encoder(images, "encoder");
  plan.encoder.tiles = images.optional<std::int64_t>("tiles", 1, 1, 1024, "pictures of the encoder's size that an image is cut into");
  images.reject_unread();
  return plan;
}

EncodePoolPlan read_encode_pool(Params& pool, const std::string& name, const ImagePlan* images, const CostSetup& first) {
  if (images == nullptr)
    pool.fail(
        fmt::format("pool '{}' encodes images, but the experiment has no key 'images': add 'images: {{tokens_each: 576, encoder: "
                    "clip-vit-l-14-336}}' with the figures of the model at the top level, or leave the pool out",
                    name));
  EncodePoolPlan plan;
  plan.name = name;
  plan.batch_images = pool.optional<std::int32_t>("batch_images", 1, 1, 1 << 16, "most images of one pass of the encoder");
  plan.cost.hardware = first.hardware;
  if (pool.has("hardware")) {
    const std::string card = pool.text("hardware", "GPU of its replicas: a name in profiles/hardware, or a file");
    plan.cost.hardware =
        pool.reading("hardware", [&] { return load_hardware_spec(file_or_name(pool, card), profiles_folder() + "/hardware"); });
  }
  plan.work = [encoder = images->encoder, hardware = plan.cost.hardware](std::int64_t count) {
    return encode_work(encoder, hardware, count);
  };
  pool.reject_unread();
  return plan;
}

namespace {

constexpr std::int64_t kBytesPerGpu = std::int64_t{128} << 30;  // 8 GPUs and 1 TiB per machine
constexpr std::int64_t kMostBytes = std::int64_t{1} << 50, kMostBlocks = std::int64_t{1} << 31;

bool can_keep_prompts(const PoolPlan& pool) {
  return pool.roles.prefill && pool.memory.prefix_caching && pool.make_footprint()->shares_prefixes() &&
         !pool.make_scheduler()->wants_contiguous_memory();
}

// Per replica.
std::int64_t blocks_of(const Params& store, const PoolPlan& pool, std::int64_t bytes_per_gpu, std::int32_t block_tokens) {
  if (block_tokens % pool.memory.block_tokens != 0)
    store.fail_at("block_tokens", fmt::format("a block of the store has {} tokens, which are no whole blocks of {}: give 'store' a "
                                              "'block_tokens' that is a multiple of 'memory.block_tokens'",
                                              block_tokens, pool.memory.block_tokens));
  const std::int64_t block_bytes = block_tokens / pool.memory.block_tokens * pool.memory.block_bytes;
  const std::int64_t blocks = bytes_per_gpu * pool.cost.parallel.gpus() / block_bytes;
  if (blocks == 0)
    store.fail_at("bytes_per_gpu", fmt::format("'bytes_per_gpu' = {} holds no block of {} bytes", bytes_per_gpu, block_bytes));
  return std::min(blocks, kMostBlocks);
}

// Reads `store`: CPU memory of prefill replicas that keeps prompts. Call after read_pools(). Throws InputError if no pool can keep prompts,
// or its blocks are not multiples of the pools'.
void read_store(Params& p, ServingPlan& plan) {
  SimSetup& setup = plan.setup;
  Params store = p.optional_child("store", "store");
  if (!p.has("store") && !p.is_describing()) return;
  if (setup.pools.empty() && p.has_own("store")) p.fail_at("store", "'store' keeps prompts that replicas share: it needs 'pools'");
  const auto bytes = store.optional<std::int64_t>("bytes_per_gpu", kBytesPerGpu, 1, kMostBytes,
                                                  "CPU memory that keeps prompts, for each GPU of a replica that prefills");
  const auto block_tokens = store.optional<std::int32_t>("block_tokens", 512, 1, 1 << 20, "tokens of a block of the store");
  setup.store.make_eviction =
      policy_factory<BlockCacheRegistry>(store, "eviction", "lru", "block cache", "which block is given up for a new one");
  store.reject_unread();
  if (p.is_describing()) return;
  if (setup.store.make_eviction()->needs_future())
    store.fail_at("eviction", "an oracle needs the future of one replica, and the store is of several: choose another, for example lru");
  bool any = false;
  for (std::size_t i = 0; i < setup.pools.size(); ++i) {
    if (!can_keep_prompts(plan.pools[i])) continue;
    setup.pools[i].store_blocks = plan.pools[i].store_blocks = blocks_of(store, plan.pools[i], bytes, block_tokens);
    any = true;
  }
  if (any) setup.store.block_tokens = block_tokens;
  if (!any && p.has_own("store"))
    p.fail_at("store",
              "no pool can keep prompts: one that prefills needs 'prefix_caching: true', a 'kv_policy' that shares prefixes, and "
              "a scheduler with paged memory, such as vllm_v1");
}

// Rates in one direction; the first is the default.
std::vector<std::pair<std::string, double>> links_of(const HardwareSpec& card) {
  std::vector<std::pair<std::string, double>> links;
  if (card.network_bytes_per_s > 0) links.emplace_back("network", card.network_bytes_per_s);
  if (card.has_nvlink) links.emplace_back("nvlink", card.link_bytes_per_s);
  links.emplace_back("pcie", card.pcie_bytes_per_s);
  return links;
}

double rate_of(const Params& transfer, const HardwareSpec& card, const std::string& name) {
  std::vector<std::string> known;
  for (const auto& [link, rate] : links_of(card)) {
    if (link == name) return rate;
    known.push_back(link);
  }
  transfer.fail_at(
      "link", fmt::format("{} has no link '{}', only {}; 'bytes_per_s' beside 'link' gives its rate for one GPU, or '{}' in {}", card.name,
                          name, join(known, " and "), name + "_bytes_per_s", card.file));
}

struct LinkChoice {
  std::string name;        // "": the card's default
  double bytes_per_s = 0;  // per GPU; 0: the card's
  Span call_time{};
};

LinkChoice read_links(Params& transfer) {
  const std::vector<std::string> names{"auto", "network", "nvlink", "pcie"};
  LinkChoice choice;
  const std::size_t link = transfer.choice("link", names, 0, "which of the card's links; auto: the network, else NVLink, else PCIe");
  if (link > 0) choice.name = names[link];
  choice.bytes_per_s = transfer.optional<double>("bytes_per_s", 0, 0, 1e15, "rate of one GPU, one direction; 0: the link's own");
  choice.call_time = from_seconds(transfer.optional<double>("call_us", 1, 0, 1e6, "time of one copy call") * 1e-6);
  return choice;
}

// Plan: PoolPlan or EncodePoolPlan.
template <class Plan>
LinkSetup link_of(const Params& transfer, const LinkChoice& choice, Plan& pool) {
  const HardwareSpec& card = pool.cost.hardware;
  const bool is_given = choice.bytes_per_s > 0;
  pool.link_name = !choice.name.empty() ? choice.name : is_given ? "given" : links_of(card).front().first;
  const double per_gpu = is_given ? choice.bytes_per_s : rate_of(transfer, card, pool.link_name);
  return {per_gpu * pool.cost.parallel.gpus(), choice.call_time};
}

// Reads `transfer`. Call after read_pools(). Throws InputError without pools, or if a card lacks the link.
void read_transfer(Params& p, ServingPlan& plan) {
  SimSetup& setup = plan.setup;
  Params transfer = p.optional_child("transfer", "transfer");
  if (setup.pools.empty()) {
    if (p.has_own("transfer")) p.fail_at("transfer", "'transfer' says how KV goes from pool to pool: it needs 'pools'");
    return;
  }
  const LinkChoice choice = read_links(transfer);
  for (std::size_t i = 0; i < plan.pools.size(); ++i) {
    plan.pools[i].link = link_of(transfer, choice, plan.pools[i]);
    setup.pools[i].link = plan.pools[i].link;
  }
  for (EncodePoolPlan& pool : plan.encode_pools) {
    pool.link = link_of(transfer, choice, pool);
    setup.images.pools.push_back(pool);
  }
  const auto layers = static_cast<std::int32_t>(plan.cost.model.layers);
  const bool is_per_layer = transfer.choice("layout", {"per_layer", "blocks"}, 0,
                                            "where the KV of a block is: keys and values of each layer apart, or in one piece") == 0;
  setup.transfer.layers = layers;
  setup.transfer.places_per_block = is_per_layer ? 2 * layers : 1;
  setup.transfer.is_layerwise = transfer.flag("layerwise", false, "KV of a layer is sent when the prompt has passed it");
  setup.transfer.merges_blocks = transfer.flag("merge_blocks", true, "one call copies all blocks that are adjacent on both sides");
  transfer.reject_unread();
}

constexpr double kMaxSeconds = 9e6;
void read_limits(Params& p, SimSetup& setup) {
  Params stop = p.optional_child("stop", "stop");
  setup.stop.after_time = stop.seconds("after_s", 0, 0, kMaxSeconds, "end the run at this time; 0: at the trace's end");
  setup.stop.after_requests =
      stop.optional<std::uint64_t>("after_requests", 0, 0, std::uint64_t{1} << 40, "take this many requests of the trace; 0: all");
  stop.reject_unread();
  setup.warmup = p.milliseconds("warmup_ms", 0, 0, kMaxSeconds * 1e3, "requests that arrive before are simulated and not counted");
  setup.timeline_interval =
      p.milliseconds("timeline_interval_ms", 1000, 0, kMaxSeconds * 1e3, "time between samples of timeline.csv; 0: none");
}

Comparisons read_comparisons(Params& p) {
  Params validate = p.optional_child("validate", "validate");
  Comparisons asked;
  if (p.has("validate") && !validate.has("max_diff_frac")) {
    asked.requests = validate.resolve_file(validate.text("requests", "requests.jsonl of a real engine"));
    std::error_code error;
    if (!std::filesystem::exists(asked.requests, error)) validate.fail_at("requests", open_error(asked.requests));
  }
  asked.max_diff_frac = validate.optional<double>(
      "max_diff_frac", 0, 0, 100, "with 'host: [sim, engine]': an error when a median over the seeds differs by more; 0: never");
  refuse_pipe(validate, "requests");
  validate.reject_unread();
  return asked;
}

void read_load(Params& p, ServingPlan& plan) {
  plan.has_load_frac = p.has("load_frac");
  plan.load_frac = p.optional<double>("load_frac", 0, 0, 1000,
                                      "arrival rate as a share of what a simulation completes when all requests come at once; 0: the "
                                      "trace's own");
  if (plan.search && plan.load_frac > 0) p.fail_at("load_frac", "'load_frac' and 'search' both set the arrival rate: give one");
}

// A search sets replicas or tp, so the file must not. Starts at the largest tp, where the model fits if at all.
void prepare_search(Params& p, const ServingSystem& system, const SearchPlan& search) {
  if (!search.is_easier_above()) return;
  const char* const key = search.key_text();
  if (has_pools(p, system))
    p.fail_at("search", fmt::format("'search' over '{}' is of runs without pools: sweep over the pools' own '{}' by a list", key, key));
  if (search.key == SearchKey::kReplicas && p.has(key))
    p.fail_at(key, "'search' over 'replicas' chooses their number: leave 'replicas' out at the top level");
  if (search.key != SearchKey::kTp) return;
  if (p.has("parallel") && p.optional_child("parallel", "parallel").has(key))
    p.fail_at("parallel", "'search' over 'tp' chooses it: leave 'tp' out of 'parallel'");
  if (p.told(kChosenTp, 0) == 0) p.prefer(kChosenTp, static_cast<long long>(search.high));
}

// `router` is the older name.
std::string dispatcher_key(Params& p) {
  p.allow({"dispatcher"});
  if (!p.has("router")) return "dispatcher";
  if (p.has("dispatcher")) p.fail_at("router", "'router' is the older name of 'dispatcher': give one of them");
  return "router";
}

void read_engine_keys(Params& p, ServingPlan& plan) {
  plan.served = read_served_model(p);
  plan.temperature = p.optional<double>("temperature", 0, 0, 100, "of the tokens drawn, with 'host: engine'; 0: the likeliest");
  plan.stays_awake =
      p.choice("idle", {"awake", "asleep"}, 0,
               "what cores do between steps, with 'host: engine' and 'backend: cpu'; awake: they wait busily and stay fast") == 0;
}

// Needed by order and predictor.
std::vector<Fact> facts_for(const PoolSetup& pool, bool dispatcher_predicts) {
  const std::unique_ptr<Order> order = pool.make_order();
  std::vector<Fact> needed = order->needs();
  if (uses_predictor(pool) || dispatcher_predicts)
    for (const Fact fact : pool.make_predictor()->needs()) needed.push_back(fact);
  return needed;
}

// swap_keeps_turns needs sessions.
void refuse_without_session(Params& p, const ServingPlan& plan, const TraceRequest& first) {
  if (first.session >= 0) return;
  for (std::size_t i = 0; i < plan.setup.num_pools(); ++i) {
    if (!plan.setup.pool(i).memory.swap.keeps_turns) continue;
    p.fail_at("trace",
              "'memory.swap_keeps_turns' needs the column 'session', which request 0 of the trace does not have: add it to the "
              "file, or let 'generate: {sessions: ...}' make it (docs/traces.md)");
  }
}

// Refuses a first request without the columns that orders or predictors need.
void read_first_facts(Params& p, ServingPlan& plan) {
  const bool has_pools = !plan.setup.pools.empty();  // a dispatcher may ask for predictions
  std::vector<Fact> needed;
  for (std::size_t i = 0; i < plan.setup.num_pools(); ++i)
    for (const Fact fact : facts_for(plan.setup.pool(i), has_pools)) needed.push_back(fact);
  const std::unique_ptr<TraceSource> trace = plan.trace.open();
  TraceRequest first;
  if (!p.reading("trace", [&] { return trace->next(first); })) return;  // empty
  plan.has_facts = first.facts != nullptr;
  refuse_without_session(p, plan, first);
  for (const Fact fact : needed) {
    if (has_fact(first.facts, fact)) continue;
    p.fail_at(has_pools ? "trace" : "order",
              fmt::format("{} needs the column '{}', which request 0 of the trace does not have: add it to the file, or let "
                          "'generate' make it (docs/orders.md)",
                          has_pools ? "the order or the predictor of a pool" : "this order", column_of(fact)));
  }
}

// Reads the whole trace if an order names clients.
void check_named_clients(Params& p, const ServingPlan& plan) {
  std::map<std::int64_t, std::string> missing;
  for (std::size_t i = 0; i < plan.setup.num_pools(); ++i)
    for (const std::string& name : plan.setup.pool(i).make_order()->named_clients()) missing.emplace(number_of_name(name), name);
  if (missing.empty()) return;
  std::set<std::int64_t> known;
  const std::unique_ptr<TraceSource> trace = plan.trace.open();
  for (TraceRequest request; !missing.empty() && trace->next(request);) {
    if (!has_fact(request.facts, Fact::kClient)) continue;
    missing.erase(request.facts->client);
    if (known.size() < 8) known.insert(request.facts->client);
  }
  if (missing.empty()) return;
  std::string names;
  for (const std::int64_t number : known) names += (names.empty() ? "" : ", ") + std::to_string(number);
  p.fail_at(plan.setup.pools.empty() || p.has("order") ? "order" : "pools",
            fmt::format("this order names the client '{}', which no request of the trace has in its column 'client'; the first "
                        "clients of the trace, by number (of a text: its hash): {}",
                        missing.begin()->second, names));
}

}  // namespace

void set_replicas(const Params& p, ServingPlan& plan, std::uint32_t replicas) {
  if (plan.setup.make_block_cache()->needs_future())
    p.fail_at("block_cache", "an oracle block cache needs one replica, so their number cannot be searched: choose another block cache");
  plan.setup.num_replicas = replicas;
  plan.pools.front().num_replicas = replicas;
}

ServingPlan read_serving_plan(Params& p, std::uint64_t seed) {
  ServingPlan plan;
  SimSetup& setup = plan.setup;
  setup.seed = seed;
  const std::string dispatcher = dispatcher_key(p);
  const ServingSystem system = read_system(p);
  Params own = p;
  for (const ServingSystem::Layer& layer : system.layers) p.fall_back_on(layer.parts, system_keys());
  plan.system = system.name;
  setup.make_dispatcher = policy_factory<DispatcherRegistry>(p, dispatcher, has_pools(p, system) ? "least_outstanding" : "round_robin",
                                                             "dispatcher", "sends requests to replicas");
  plan.images = read_images(p);
  setup.slo = read_slo(p);
  plan.search = read_search(p, setup.slo.has_targets());
  if (plan.search) prepare_search(p, system, *plan.search);
  read_pools(p, own, system, plan);
  if (plan.search && plan.search->key == SearchKey::kReplicas) set_replicas(p, plan, static_cast<std::uint32_t>(plan.search->high));
  read_transfer(p, plan);
  read_store(p, plan);
  read_limits(p, setup);
  setup.expected_text = read_expected_text(p);
  read_engine_keys(p, plan);
  read_load(p, plan);
  plan.has_samples = p.has("samples");
  p.optional_child("samples", "samples");
  p.optional<std::int32_t>("kv_bytes", 2, 1, 8, "bytes of a stored element of the uncompressed cache, in the replay of `samples`");
  plan.comparisons = read_comparisons(p);
  return plan;
}

std::int64_t num_gpus(const ServingPlan& plan) {
  std::int64_t gpus = 0;
  for (const PoolPlan& pool : plan.pools) gpus += std::int64_t{pool.num_replicas} * pool.cost.parallel.gpus();
  for (const EncodePoolPlan& pool : plan.encode_pools) gpus += std::int64_t{pool.num_replicas} * pool.cost.parallel.gpus();
  return gpus;
}

void read_requests(Params& p, ServingPlan& plan) {
  plan.trace = read_trace(p, plan.setup.seed);
  plan.trace.open = [open = plan.trace.open, tokens_each = plan.setup.images.tokens_each] {
    return std::make_unique<ImageTokens>(open(), tokens_each);
  };
  if (!plan.trace.remark.empty()) plan.remarks.push_back(plan.trace.remark);
  const bool searches_rate = plan.search && (plan.search->key == SearchKey::kRate || plan.search->at_rate_per_s > 0);
  const char* const key = plan.search ? "search" : "load_frac";
  if ((searches_rate || plan.load_frac > 0) && plan.trace.open()->closed_loop().concurrency > 0)
    p.fail_at(key, fmt::format("'{}' sets the arrival rate, but the trace is a closed loop: it has none", key));
  read_first_facts(p, plan);
  check_named_clients(p, plan);
  check_slo_groups(p, plan.setup.slo, plan.trace.open);
  p.reject_unread();
}

std::string read_backend(Params& p) {
  return p.choice("backend", {"cpu", "cuda"}, 0, "what the model runs on, with 'host: engine'") == 1 ? "cuda" : "cpu";
}

ServedModel read_served_model(Params& p) {
  ServedModel served;
  served.has_random_weights = p.choice("weights", {"files", "random"}, 0,
                                       "of the model, with 'host: engine'; random: in the profile's shape, to measure times") == 1;
  served.backend = read_backend(p);
  return served;
}

}  // namespace kvlab
