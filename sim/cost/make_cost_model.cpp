#include "sim/cost/make_cost_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <optional>

#include "base/ceil_div.h"
#include "base/config/spec_file.h"
#include "base/text.h"
#include "sim/cost/model_file.h"
#include "sim/cost/profile.h"
#include "sim/cost/roofline_prices.h"
#include "sim/cost/step_cost_model.h"

namespace kvlab {

namespace {

constexpr std::int64_t kMiB = 1 << 20;
// From logs of vLLM (docs/cost-model.md): CUDA's and libraries' memory, and a captured graph's share of one layer.
constexpr std::int64_t kContextBytes = 350 * kMiB, kGraphLayerBytes = 365 << 10;
// Live at once, without the MLP's: residual, normalised input, the layer's output.
constexpr std::int64_t kLiveHidden = 3;

void check_experts(const Params& p, const Parallel& parallel, const ModelSpec& m) {
  const int tp = parallel.tp, dp = parallel.dp, ep = parallel.ep;
  if (parallel.exchange == ExpertExchange::kDeepEp && (dp == 1 || ep == 1))
    p.fail_at("all_to_all", "'all_to_all: deepep' is an exchange between ranks with whole experts: it needs dp > 1 and ep = tp x dp");
  if (ep == 1) return;
  if (!m.is_moe()) p.fail_at("ep", fmt::format("'ep' = {} but {} has no experts", ep, m.name));
  if (dp > 1 && ep != tp * dp)
    p.fail_at("ep", fmt::format("'ep' = {} is neither 1 nor tp x dp = {} x {} = {}: with dp, experts are cut over all of a replica's ranks "
                                "or spread over all of them",
                                ep, tp, dp, tp * dp));
  if (ep % tp != 0) p.fail_at("ep", fmt::format("'ep' = {} is not a multiple of tp = {}", ep, tp));
  if (m.experts % ep != 0) p.fail_at("ep", fmt::format("'ep' = {} does not divide the {} experts of {}", ep, m.experts, m.name));
}

void check_parallel(const Params& p, const Parallel& parallel, const ModelSpec& m) {
  if (m.q_heads % parallel.tp != 0)
    p.fail_at("tp", fmt::format("'tp' = {} does not divide the {} query heads of {}", parallel.tp, m.q_heads, m.name));
  if (m.kv_heads % parallel.tp != 0 && parallel.tp % m.kv_heads != 0)
    p.fail_at("tp",
              fmt::format("'tp' = {} neither divides the {} KV heads of {} nor is a multiple of them", parallel.tp, m.kv_heads, m.name));
  const bool is_state_space = m.linear.rule == LinearAttention::Rule::kStateSpace;  // heads are cut, groups repeated
  if (is_state_space && m.linear.value_heads % parallel.tp != 0)
    p.fail_at("tp", fmt::format("'tp' = {} does not divide the {} heads of {}'s state space", parallel.tp, m.linear.value_heads, m.name));
  if (m.linear.exists() && !is_state_space && m.linear.key_heads % parallel.tp != 0)
    p.fail_at("tp",
              fmt::format("'tp' = {} does not divide the {} key heads of {}'s linear attention", parallel.tp, m.linear.key_heads, m.name));
  if (parallel.pp > m.layers) p.fail_at("pp", fmt::format("'pp' = {} is more than the {} layers of {}", parallel.pp, m.layers, m.name));
  check_experts(p, parallel, m);
}

int read_tp(const Params& experiment, Params& parallel) {
  constexpr int kMost = 1024;
  parallel.prefer("tp", experiment.told(kChosenTp, 1));
  return parallel.optional<int>("tp", 1, 1, kMost, "GPUs that share each layer");
}

// Not listed without ranks.
void read_load_balance(Params& p, Parallel& parallel) {
  constexpr const char* kKey = "load_balance_method";
  if (parallel.dp == 1 && !p.has(kKey) && !p.is_describing()) return;
  parallel.load_balance = p.choice<LoadBalance>(kKey,
                                                {{"vllm", LoadBalance::kVllm},
                                                 {"round_robin", LoadBalance::kRoundRobin},
                                                 {"total_requests", LoadBalance::kTotalRequests},
                                                 {"total_tokens", LoadBalance::kTotalTokens}},
                                                LoadBalance::kVllm,
                                                "with dp, the rank of a replica that takes the next request: least 4 x waiting + running, "
                                                "ranks in turn, fewest requests, fewest tokens (SGLang's names)");
}

void read_parallel(Params& experiment, CostSetup& setup) {
  constexpr int kMost = 1024;
  Params p = experiment.optional_child("parallel", "parallel");
  Parallel& parallel = setup.parallel;
  parallel.tp = read_tp(experiment, p);
  parallel.pp = p.optional<int>("pp", 1, 1, kMost, "stages the layers are cut into");
  parallel.dp = p.optional<int>("dp", 1, 1, kMost, "ranks of tp x pp GPUs, each with its own scheduler and KV cache; limits are per rank");
  parallel.ep = p.optional<int>(
      "ep", 1, 1, kMost, "GPUs the experts are spread over: tp x dp, or a multiple of tp without dp; 1: experts are cut over tp x dp");
  parallel.exchange =
      p.choice<ExpertExchange>("all_to_all", {{"allgather_reducescatter", ExpertExchange::kAllGather}, {"deepep", ExpertExchange::kDeepEp}},
                               ExpertExchange::kAllGather,
                               "how tokens cross to the experts of other ranks, with dp: every rank receives all of them, or each rank "
                               "those that it has experts of");
  read_load_balance(p, parallel);
  const int gpus = p.optional<int>("gpus", 0, 0, kMost * kMost, "GPUs of a replica, as a check of the others; 0: not stated");
  setup.overlap = read_overlap(p, setup);
  p.reject_unread();
  check_parallel(p, parallel, setup.model);
  if (gpus != 0 && gpus != parallel.gpus())
    p.fail_at("gpus", fmt::format("'gpus' = {}, but tp = {}, pp = {}, dp = {} and ep = {} make a replica of {}", gpus, parallel.tp,
                                  parallel.pp, parallel.dp, parallel.ep, parallel.gpus()));
}

struct ProfileChoice {
  std::unique_ptr<ProfileFormat> format;
  std::string path;
  bool fills_gaps = false, keeps_impossible = false;
  std::optional<KvReads> kv_reads;  // none: the profile's
};

// "roofline, {kvlab | bundle: {path, missing}}, or {aisimulate: {system, backend}}": equal parameters together.
std::string formats_text() {
  std::string none;
  std::vector<std::pair<std::string, std::string>> by_parameters;
  for (const std::string& name : Registry<ProfileFormat>::names())
    if (!make_profile_format(name)->has_tables()) none = name;
  for (const std::string& name : profile_format_names()) {
    const std::string parameters = make_profile_format(name)->parameters();
    const auto same = std::find_if(by_parameters.begin(), by_parameters.end(), [&](const auto& one) { return one.first == parameters; });
    if (same == by_parameters.end())
      by_parameters.emplace_back(parameters, name);
    else
      same->second += " | " + name;
  }
  std::string text = none;
  for (const auto& [parameters, names] : by_parameters)
    text += fmt::format(", {}{{{}: {{{}}}}}", parameters == by_parameters.back().first ? "or " : "", names, parameters);
  return text;
}

ProfileChoice read_choice(Params& experiment) {
  auto [name, p] = experiment.named("profile", "roofline", "where step times come from: " + formats_text());
  const std::vector<std::string> known = Registry<ProfileFormat>::names();
  if (std::find(known.begin(), known.end(), name) == known.end())
    experiment.fail_at("profile", "unknown profile format '" + name + "'" + suggestion(name, known));
  ProfileChoice choice{make_profile_format(name), "", false, false, std::nullopt};
  if (choice.format->has_tables()) {
    choice.keeps_impossible =
        p.choice("impossible", {"refuse", "keep"}, 0, "what to do about entries faster than the datasheet allows") == 1;
    choice.fills_gaps = p.choice("missing", {"error", "roofline"}, choice.format->fills_gaps() ? 1 : 0,
                                 "what to do about operations or a tp without a table") == 1;
    const std::size_t reads =
        p.choice("kv_reads", {"as_measured", "stored", "decoded", "unpacked"}, 0,
                 "what attention reads of packed KV: as in the engine that was measured, its codes, K and V that stay decoded, or K and V "
                 "that each step decodes anew");
    if (reads > 0) choice.kv_reads = static_cast<KvReads>(reads - 1);
    choice.path = choice.format->read_folder(p);
  }
  p.reject_unread();
  return choice;
}

Profile read_profile(const ProfileChoice& choice, int tp) {
  if (choice.format->has_degrees() && choice.fills_gaps) {
    const std::vector<int> degrees = profile_tp_degrees(choice.path);
    const bool has_tp = std::find(degrees.begin(), degrees.end(), tp) != degrees.end();
    if (!has_tp && !degrees.empty()) tp = degrees.front();
  }
  return choice.format->read(choice.path, tp);
}

// "meta-llama/Llama-3.1-8B" -> "llama-3.1-8b".
std::string file_name_of(const std::string& name) {
  return lower_case(name.substr(name.rfind('/') == std::string::npos ? 0 : name.rfind('/') + 1));
}

void check_coverage(const Profile& profile, const ModelSpec& m) {
  std::vector<OpWork> ops;
  for (const LayerClass& layers : layer_classes(m)) layer_ops(m, Parallel{}, layers, 1, ops);
  step_ops(m, Parallel{}, 1, ops);
  head_ops(m, Parallel{}, 1, ops);
  std::vector<std::string> missing;
  for (const OpWork& op : ops) {
    if (!profile.has_small_ops && op.format == nullptr) continue;
    const bool is_missing = !is_part_of_another(profile, op.op) && !has_times(profile, op.op);
    const bool is_named = std::find(missing.begin(), missing.end(), name_of(op.op)) != missing.end();
    if (is_missing && !is_named) missing.emplace_back(name_of(op.op));
  }
  if (profile.attention.empty()) missing.emplace_back(table_of(OpFamily::kAttention));
  if (missing.empty()) return;
  throw InputError(fmt::format("{}: no table of {} for tp {}, which {} needs; 'missing: roofline' fills the gap", profile.file,
                               join(missing, ", "), profile.tp, m.name));
}

void check_attention(const Profile& profile) {
  if (profile.attention.empty()) return;
  const auto& samples = profile.attention.samples();
  const bool has_decode = std::any_of(samples.begin(), samples.end(), [](const auto& s) { return s.at[0] == 0 && s.at[2] > 0; });
  const bool has_prompt = std::any_of(samples.begin(), samples.end(), [](const auto& s) { return s.at[0] > 0; });
  if (!has_decode || !has_prompt)
    throw InputError(profile.file + ": the attention table has no " + (has_decode ? "prompts" : "steps of decode rows alone"));
}

void apply_lint(Profile& profile, const CostSetup& setup, bool keeps_impossible) {
  for (const LintFinding& finding : lint_profile(profile, setup.model, setup.hardware)) {
    if (finding.severity == LintFinding::Severity::kError && !keeps_impossible) {
      throw InputError(profile.file + ": " + finding.text + "; 'impossible: keep' uses it all the same");
    }
    profile.notes.push_back(finding.text);
  }
}

std::string letters_and_digits(const std::string& name) {
  std::string kept;
  for (const char c : file_name_of(name))
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) kept += c;
  return kept;
}

// Links of two cards are too alike for the lint.
void check_card_of_collectives(const Profile& profile, const HardwareSpec& hardware) {
  const std::string measured = letters_and_digits(profile.hardware);
  if (profile.collectives.empty() || measured.empty()) return;
  for (const std::string& name : {hardware.name, std::filesystem::path(hardware.file).stem().string()}) {
    const std::string own = letters_and_digits(name);
    if (own.find(measured) != std::string::npos || measured.find(own) != std::string::npos) return;
  }
  const CollectiveTable& first = profile.collectives.front();
  throw InputError(fmt::format("{}: {} was measured on {}, and the hardware is {}", first.places.front(), collective_name(first.op),
                               profile.hardware, hardware.name));
}

EngineName engine_of(const Profile& profile) {
  for (const char* name : {"vllm", "trtllm", "sglang"})
    if (const auto known = profile.options.find(fmt::format("{}_version", name)); known != profile.options.end())
      return {name, known->second};
  return {};
}

std::shared_ptr<const Collectives> collectives_for(const CostSetup& setup, const std::optional<Profile>& profile, bool fills_gaps) {
  CollectiveTables own;
  EngineName engine = setup.engine.engine;
  if (profile) {
    check_card_of_collectives(*profile, setup.hardware);
    own = {profile->collectives, fills_gaps};
    if (engine.name.empty()) engine = engine_of(*profile);
  }
  auto all = std::make_shared<const Collectives>(std::move(own), setup.hardware.collectives, setup.hardware.links(), engine);
  for (const CollectiveUse& use : collectives_of(setup.model, setup.parallel)) all->require(use);
  return all;
}

void use_profile(CostSetup& setup, Profile profile, const ProfileChoice& choice, const std::shared_ptr<const RooflinePrices>& roofline) {
  const ModelSpec& m = setup.model;
  const bool tells_layers_apart =
      std::any_of(profile.ops.begin(), profile.ops.end(), [](const ProfileOp& op) { return op.layer_class.has_value(); });
  if (!m.expert_layers.empty() && !tells_layers_apart)
    throw InputError(m.name + " has layers with experts and without, and a profile has one table for each operation; leave 'profile' out");
  if (m.linear.exists())
    throw InputError(m.name + " has layers of linear attention, which no table of a profile is for; leave 'profile' out");
  const bool differ = m.index.exists() || m.compressed.exists() || !m.layer_shapes.empty();
  if (differ && !tells_layers_apart)
    throw InputError(m.name +
                     " has layers of different sizes or sparse attention, which no table of a profile is for; leave 'profile' out");
  check_attention(profile);
  profile.kv_reads = choice.kv_reads.value_or(profile.kv_reads);
  if (!choice.fills_gaps) check_coverage(profile, m);
  apply_lint(profile, setup, choice.keeps_impossible);
  setup.profile_name = profile.format + " " + profile.file;
  setup.profile_hash = profile_hash(profile);
  setup.profile_date = profile.measured;
  setup.profile = std::make_shared<const Profile>(std::move(profile));
  const auto as_measured = std::make_shared<const RooflinePrices>(m, setup.hardware, Parallel{setup.profile->tp, 1, 1}, setup.collectives);
  setup.prices = std::make_shared<ProfilePrices>(setup.profile, roofline, as_measured);
}

// `key` of the experiment, else of the profile: a file that it brings, or ours by name.
std::string name_of(Params& experiment, const std::string& key, const std::string& measured_on, const std::string& own_file,
                    const std::string& meaning) {
  if (measured_on.empty()) return experiment.text(key, meaning);
  std::error_code error;
  const std::string fallback =
      std::filesystem::exists(own_file, error) ? std::filesystem::absolute(own_file).string() : file_name_of(measured_on);
  return experiment.text(key, fallback, meaning + "; by default the one the profile was measured on");
}

int tp_of(Params& experiment) {
  Params p = experiment.optional_child("parallel", "parallel");
  return read_tp(experiment, p);
}

// vLLM keeps the up-projection of keys and values once more in each latent layer, in the form for decode rows.
std::int64_t absorbed_bytes(const CostSetup& setup) {
  const LatentAttention& l = setup.model.latent;
  return l.kv_rank * (setup.model.q_heads / setup.parallel.tp) * (l.nope + l.value) * setup.model.activation_bytes();
}

}  // namespace

CostSetup read_cost_setup(Params& experiment) {
  CostSetup setup;
  const ProfileChoice choice = read_choice(experiment);
  std::optional<Profile> profile;
  if (choice.format->has_tables() && !experiment.is_describing()) {
    profile = experiment.reading("profile", [&] { return read_profile(choice, tp_of(experiment)); });
  }
  const std::string model =
      name_of(experiment, "model", profile ? profile->model : "", profile ? profile->file + "/models/" + profile->model + ".yaml" : "",
              "a name in profiles/models, a config.json or a folder that holds one");
  const std::string hardware = name_of(experiment, "hardware", profile ? profile->hardware : "",
                                       profile ? profile->file + "/hardware/" + profile->hardware + ".yaml" : "",
                                       "GPU: a name in profiles/hardware, or a YAML file");
  const std::string scheme =
      experiment.text("quantization", "none", "format of the weights: fp8, awq, gptq, nvfp4, ...; none: that of the model's file");
  setup.engine = read_engine_times(experiment, profiles_folder() + "/engines");
  if (experiment.is_describing()) {
    experiment.optional_child("parallel", "parallel");
    return setup;
  }
  const std::string folder = profiles_folder();
  setup.model = experiment.reading(experiment.has("quantization") ? "quantization" : "model",
                                   [&] { return load_model_spec(file_or_name(experiment, model), folder + "/models", scheme); });
  setup.hardware =
      experiment.reading("hardware", [&] { return load_hardware_spec(file_or_name(experiment, hardware), folder + "/hardware"); });
  read_parallel(experiment, setup);
  if (profile) choice.format->add_tables_of_model(*profile, setup.model, setup.parallel);
  setup.collectives = experiment.reading("parallel", [&] { return collectives_for(setup, profile, choice.fills_gaps); });
  const auto roofline = std::make_shared<const RooflinePrices>(setup.model, setup.hardware, setup.parallel, setup.collectives);
  setup.prices = roofline;
  if (profile) experiment.reading("profile", [&] { use_profile(setup, std::move(*profile), choice, roofline); });
  return setup;
}

std::unique_ptr<CostModel> make_cost_model(const CostSetup& setup) {
  auto cost = std::make_unique<StepCostModel>(setup.prices, setup.model, setup.hardware, setup.parallel, setup.engine);
  if (!setup.overlap) return cost;
  return make_token_weave(std::move(cost), setup);
}

std::int64_t default_reserve_bytes(const CostSetup& setup, const LargestStep& step) {
  const ModelSpec& m = setup.model;
  const std::int64_t mlp = std::max(m.experts_per_token * m.moe_intermediate + m.shared_intermediate, m.intermediate);
  const std::int64_t widths = kLiveHidden * m.hidden + (m.gated_mlp ? 3 : 2) * mlp / setup.parallel.tp;
  const std::int64_t tokens = ceil_div(step.tokens, setup.parallel.data_ranks());
  constexpr std::int64_t kFp32 = 4;
  // All ranks' tokens before the experts, and the sums after.
  const std::int64_t gathered = m.is_moe() && setup.parallel.dp > 1 ? 2 * setup.parallel.dp * m.hidden : 0;
  const std::int64_t activations = tokens * (widths + gathered) * m.activation_bytes();
  const std::int64_t logits = std::min(step.rows, step.tokens) * m.vocabulary * (m.activation_bytes() + kFp32);
  const std::int64_t turned = m.latent.exists() ? m.latent.rope : m.head_dim;
  const std::int64_t rope = m.learned_positions ? 0 : std::max<std::int64_t>(0, m.max_tokens) * turned * m.activation_bytes();
  const std::int64_t layers = ceil_div(m.layers, setup.parallel.pp);
  return std::max(activations, logits) + rope + layers * absorbed_bytes(setup) + step.graphs * layers * kGraphLayerBytes + kContextBytes;
}

std::int64_t derive_num_blocks(const CostSetup& setup, double memory_frac, std::int64_t reserve_bytes, std::int64_t block_tokens,
                               bool is_hybrid) {
  const ModelSpec& m = setup.model;
  const Parallel& p = setup.parallel;
  const KvLayout layout = kv_layout(m, p, block_tokens, is_hybrid);
  const std::int64_t weights = weight_bytes(m, p.tp, p.pp, p.expert_ranks());
  const auto usable_of = [memory_frac](const CostSetup& s) {
    return static_cast<std::int64_t>(std::floor(memory_frac * static_cast<double>(s.hardware.memory_bytes)));
  };
  const std::int64_t usable = usable_of(setup), left = usable - weights - reserve_bytes;
  if (left < layout.full_groups * layout.page_bytes) {
    const std::string fitting = setups_that_fit(setup, [&](const CostSetup& s) {
      const KvLayout pages = kv_layout(s.model, s.parallel, block_tokens, is_hybrid);
      const std::int64_t own = weight_bytes(s.model, s.parallel.tp, s.parallel.pp, s.parallel.expert_ranks());
      return usable_of(s) - own - reserve_bytes >= pages.full_groups * pages.page_bytes;
    });
    constexpr double kGiB = 1024.0 * 1024 * 1024;
    throw InputError(fmt::format(
        "{} does not fit on {} x {}: of {:.1f} GiB usable per GPU, weights take {:.1f} and the reserve {:.1f}, which leaves no KV block; "
        "raise parallel.tp{} or the memory fraction, lower the scheduler's tokens per step (of vllm_v0: max_model_len), or choose a larger "
        "GPU",
        m.name, p.gpus(), setup.hardware.name, static_cast<double>(usable) / kGiB, static_cast<double>(weights) / kGiB,
        static_cast<double>(reserve_bytes) / kGiB, fitting.empty() ? "" : " (" + fitting + " fits)"));
  }
  return left / layout.page_bytes / layout.full_groups * p.data_ranks();
}

}  // namespace kvlab
