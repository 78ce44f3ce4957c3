#include "app/schema/asked_experiments.h"

#include <fmt/format.h>

#include <array>
#include <filesystem>

#include "app/runs/experiment.h"
#include "app/runs/latency_limit.h"
#include "app/runs/run_kind.h"
#include "base/error.h"
#include "base/spec_file.h"

namespace kvlab {

namespace {

constexpr const char* kFileName = "experiment_of_the_schema";

// Readers ask for most keys whether they are there or not; the keys of some mappings only where the mapping is there. So these have each.
constexpr std::array kExperiments = {
    // Simulation.
    R"(
model: gpt-oss-20b
hardware: h100
scheduler: vllm_v1
memory: {hybrid: true}
slo: {ttft_ms: 1, tbt_ms: 1, classes: {NAME: {e2e_ms: 1}}}
qoe: {ttft_ms: 1}
validate: {max_diff_frac: 1}
images: {tokens_each: 10, encoder: clip-vit-l-14-336}
paths_from: {working_folder: ., experiment_folder: .}
figures: {NAME: {title: a, only: {NAME: a}, names: {NAME: a}}}
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
    classes: {NAME: {share_frac: 1, prompt_tokens: {fixed: {value: 10}}, output_tokens: {fixed: {value: 10}}, priority: 1, ttft_slo_ms: 1, tpot_slo_ms: 1, tbt_slo_ms: 1}}
)",
    R"(
model: llama-3.1-8b
hardware: h100
scheduler: vllm_v1
memory: {num_blocks: 100}
slo: {preset: mlperf_llama3.1-8b_server, clients: {NAME: {e2e_ms: 1}}}
kv_policy: {recipe: full}
samples: {NAME: {file: none.safetensors}}
load_frac: 0.5
trace: {file: traces/samples/azure_like.csv, arrival: {poisson: {rate_per_s: 1}}}
)",
    // Recorded log, its folders, the older name of a key.
    R"(
model: llama-3.1-8b
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
pools: {NAME: {role: prefill, replicas: 1}, OTHER: {role: decode, replicas: 1, hardware: h200}}
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
samples: {NAME: {synthetic: {prompt_tokens: 64, decode_tokens: 4}}}
)",
    R"(
host: replay
kv_policy: {recipe: full}
samples: {NAME: {record: {model: engine/probe, eval: engine/probe/eval/dev.jsonl, task: niah, length_tokens: 1024, decode_tokens: 1}}}
)",
    // Graded answers, and serving by the engine.
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

// One for each quantity that `search` varies, with every limit that it takes.
std::vector<std::string> search_experiments() {
  std::string limits;
  for (const std::string& column : latency_limit_columns()) limits += ", " + column + ": 1";
  std::vector<std::string> texts;
  for (const char* key : {"rate", "concurrency", "replicas", "tp"})
    texts.push_back(
        fmt::format("model: llama-3.1-8b\nhardware: h100\nscheduler: vllm_v1\ntrace: {{file: traces/samples/azure_like.csv}}\nsearch: "
                    "{{{}: [1, 2]{}}}\n",
                    key, limits));
  return texts;
}

// Reads an experiment, whatever becomes of it: files that are not there end it, and the keys asked for until then count.
void read_for_its_keys(const std::string& text) {
  const std::filesystem::path sources = std::filesystem::path(profiles_folder()).parent_path();
  try {
    auto config = std::make_shared<ConfigFile>(*parse_config(text, kFileName));
    config->folders = {sources, sources};
    RunKinds kinds;
    const Experiment e = parse_experiment(text, kFileName, {});
    Params p(config, e.runs.at(0).choices, "the experiment");
    kinds.read(p, 1);
  } catch (const InputError&) {
  }
}

}  // namespace

std::vector<AskedKeys::Asked> asked_of_experiments() {
  const AskedKeys asked(kFileName);
  for (const char* text : kExperiments) read_for_its_keys(text);
  for (const std::string& text : search_experiments()) read_for_its_keys(text);
  return asked.all();
}

}  // namespace kvlab
