#include <fmt/format.h>

#include <array>
#include <filesystem>
#include <string_view>

#include "app/runs/accuracy/attention_samples.h"
#include "app/runs/kinds/run_kind.h"
#include "app/runs/plan/slo.h"
#include "app/runs/sweep/experiment.h"
#include "app/schema/schema.h"
#include "base/config/config_file.h"
#include "base/config/spec_file.h"
#include "base/error.h"
#include "sim/cost/profile.h"

namespace kvlab {

namespace {

constexpr const char* kFileName = "experiment_of_the_schema";

// Readers ask for keys of some mappings only if these are present.
constexpr std::array kExperiments = {
    // Simulation.
    R"(
model: gpt-oss-20b
hardware: h100
scheduler: vllm_v1
memory: {hybrid: true}
slo: {ttft_ms: 1, tbt_ms: 1, classes: {NAME: {e2e_ms: 1, tbt_ms: 1}}, clients: {NAME: {tbt_ms: {p99: 1}}}}
qoe: {ttft_ms: 1}
validate: {max_diff_frac: 1}
images: {tokens_each: 10, encoder: clip-vit-l-14-336}
paths_from: {working_folder: ., experiment_folder: .}
figures: {NAME: {metric: ttft, title: a, only: {NAME: a}, names: {NAME: a}}, OTHER: {metric: ttft, only: a}}
trace:
  generate:
    requests: 10
    arrival: {poisson: {rate_per_s: 1}}
    prompt_tokens: {fixed: {value: 10}}
    output_tokens: {fixed: {value: 10}}
    sessions: {turns: {fixed: {value: 1}}, new_tokens: {fixed: {value: 1}}, think_time: {exponential: {mean_s: 1}}}
    shared_prefix: {num_groups: 1, tokens: {fixed: {value: 10}}}
    clients: {num: 2}
    images: {share_frac: 0.5, per_request: {fixed: {value: 1}}}
    classes: {NAME: {share_frac: 1, priority: 1, ttft_slo_ms: 1, tpot_slo_ms: 1, tbt_slo_ms: 1}}
)",
    R"(
model: llama-3.1-8b
hardware: h100
scheduler: vllm_v1
memory: {num_blocks: 100}
slo: {preset: mlperf_llama3.1-8b_server, tbt_ms: {p99: 1}, classes: {NAME: {tbt_ms: {p99: 1}}}, clients: {NAME: {tbt_ms: 1}}}
kv_policy: {recipe: full}
samples: {NAME: {file: none.safetensors}}
load_frac: 0.5
trace: {file: traces/samples/azure_like.csv, arrival: {poisson: {rate_per_s: 1}}}
)",
    // Recorded log and its folders; the older name of a key.
    R"(
model: gemma-2b
hardware: h100
scheduler: vllm_v1
router: round_robin
validate: {requests: traces/samples/azure_like.csv}
trace: {file: traces/samples/azure_like.csv, format: azure}
)",
    // Pools.
    R"(
model: llama-3.1-8b
hardware: h100
scheduler: vllm_v1
dispatcher: mooncake
pools: {NAME: {role: prefill, replicas: 1}, OTHER: {role: decode, replicas: 1, hardware: h200, scheduler: vllm_v1}}
store: {bytes_per_gpu: 1000000000}
transfer: {layerwise: true}
trace: {file: traces/samples/azure_like.csv}
)",
    R"(
model: llama-3.1-8b
hardware: h100
scheduler: vllm_v1
images: {tokens_each: 10, encoder: clip-vit-l-14-336}
pools: {NAME: {role: encode, replicas: 1, batch_images: 2}, OTHER: {role: both, replicas: 1}}
trace: {file: traces/samples/azure_like.csv}
)",
    // Hit ratios.
    R"(
kind: block_cache_mrc
block_caches: lru
capacity_blocks: 10
block_tokens: 16
trace: {file: traces/samples/azure_like.csv}
)",
    // Replay.
    R"(
host: replay
kv_policy: {recipe: snapkv, budget_tokens: 128}
samples: {NAME: {file: none.safetensors}}
)",
    R"(
host: replay
kv_policy: {recipe: snapkv, budget_frac: 0.5, weights: none.safetensors}
samples: {NAME: {file: none.safetensors}}
)",
    R"(
host: replay
kv_policy: {recipe: snapkv, compression_ratio: 0.5, prefill_selector: all}
samples: {NAME: {file: none.safetensors}}
)",
    // Graded answers; serving by the engine.
    R"(
host: engine
model: engine/probe
eval: {file: engine/probe/eval/dev.jsonl, tasks: [niah], lengths: [1024], per_task: 1}
kv_policy: {recipe: full}
replay: {per_task: 1}
)",
    R"(
host: engine
model: engine/probe
hardware: h100
scheduler: vllm_v1
trace: {file: traces/samples/azure_like.csv}
)"};

constexpr const char* kServed = "model: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\ntrace: {file: traces/samples/azure_like.csv}\n";

// Per quantity of `search`, with every limit.
std::vector<std::string> search_experiments() {
  std::string limits;
  for (const std::string& column : latency_limit_columns()) limits += ", " + column + ": 1";
  std::vector<std::string> texts;
  for (const char* key : {"rate", "concurrency", "replicas", "tp"})
    texts.push_back(fmt::format("{}search: {{{}: [1, 2]{}}}\n", kServed, key, limits));
  return texts;
}

// Per name that is in no registry, with required parameters.
std::vector<std::string> named_experiments() {
  std::vector<std::string> texts;
  texts.push_back(fmt::format("{}expect: {{NAME: {{max: 1}}}}\n", kServed));
  for (const std::string& format : profile_format_names())
    texts.push_back(fmt::format("{}profile: {{{}: {{{}: none}}}}\n", kServed, format, make_profile_format(format)->folder_key()));
  for (const std::string& engine : yaml_names(profiles_folder() + "/engines"))
    texts.push_back(fmt::format("{}engine: {{{}: {{}}}}\n", kServed, engine));
  texts.push_back(fmt::format("{}parallel: {{tp: 2, overlap: {{token_weave: {{}}}}}}\n", kServed));
  texts.push_back(fmt::format("{}images: {{tokens_each: 10, encoder: {{layers: 1, hidden: 1, intermediate: 1, patches: 1}}}}\n", kServed));
  return texts;
}

// Missing files may end the reading; keys up to then count. Throws InternalError if readers do not know one of its keys.
void read_for_its_keys(const std::string& text) {
  const std::filesystem::path sources = std::filesystem::path(profiles_folder()).parent_path();
  try {
    auto config = std::make_shared<ConfigFile>(*parse_config(text, kFileName));
    config->folders = {sources, sources};
    RunKinds kinds;
    const Experiment e = parse_experiment(text, kFileName, {});
    Params p(config, e.runs.at(0).choices, "the experiment");
    kinds.read(p, 1);
  } catch (const InputError& e) {
    const std::string_view what = e.what();
    if (what.find("unknown key") != std::string_view::npos)
      throw InternalError("an experiment of the schema is outdated: " + std::string(what));
  }
}

std::vector<AskedKeys::Asked> asked_of_samples() {
  std::vector<ParamDoc> docs;
  const AskedKeys asked("<sample");
  Params described = Params::describing("sample", docs);
  describe_attention_sample(described);
  std::vector<AskedKeys::Asked> all = asked.all();
  for (AskedKeys::Asked& one : all) one.path = "samples.NAME." + one.path;
  return all;
}

}  // namespace

std::vector<AskedKeys::Asked> asked_of_experiments() {
  std::vector<AskedKeys::Asked> all = asked_of_samples();
  const AskedKeys asked(kFileName);
  for (const char* text : kExperiments) read_for_its_keys(text);
  for (const std::string& text : search_experiments()) read_for_its_keys(text);
  for (const std::string& text : named_experiments()) read_for_its_keys(text);
  all.insert(all.end(), asked.all().begin(), asked.all().end());
  return all;
}

}  // namespace kvlab
