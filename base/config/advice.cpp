#include "base/config/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/config/config_file.h"
#include "base/text.h"

namespace kvlab {

namespace {

constexpr std::pair<std::string_view, const char*> kOwnKeys[] = {
    {"max_num_batched_tokens", "'budget_tokens' of the scheduler, as in 'scheduler: {vllm_v1: {budget_tokens: 8192}}'"},
    {"chunked_prefill_size", "'budget_tokens' of the scheduler, as in 'scheduler: {vllm_v1: {budget_tokens: 8192}}'"},
    {"max_prefill_tokens", "'budget_tokens' of the scheduler, as in 'scheduler: {vllm_v1: {budget_tokens: 8192}}'"},
    {"max_num_seqs", "'max_num_seqs' of the scheduler, as in 'scheduler: {vllm_v1: {max_num_seqs: 256}}'"},
    {"max_running_requests", "'max_num_seqs' of the scheduler, as in 'scheduler: {vllm_v1: {max_num_seqs: 256}}'"},
    {"max_batch_size", "'max_num_seqs' of the scheduler, as in 'scheduler: {vllm_v1: {max_num_seqs: 256}}'"},
    {"enable_chunked_prefill", "'chunked_prefill' of scheduler vllm_v1"},
    {"async_scheduling", "'async_scheduling' of scheduler vllm_v1"},
    {"scheduler_reserve_full_isl", "'reserve_full_prompt' of scheduler vllm_v1"},
    {"enable_mixed_chunk", "'mixed_chunk' of scheduler sglang"},
    {"disable_overlap_schedule", "'overlap: false' of scheduler sglang"},
    {"scheduling_policy", "'order', as in 'order: priority'"},
    {"schedule_policy", "'order', as in 'order: priority'; SGLang's lpm is longest_prefix, its lof longest_output"},
    {"enable_priority_scheduling", "'order: priority'"},
    {"load_balance_method", "'dispatcher', as in 'dispatcher: round_robin'"},
    {"enforce_eager", "'largest_graph_tokens' of scheduler vllm_v1, 0"},
    {"disable_cuda_graph", "'largest_graph_tokens' of scheduler vllm_v1, 0"},
    {"disable_hybrid_kv_cache_manager", "'hybrid: false' in 'memory'"},
    {"model_path", "'model'"},
    {"long_prefill_token_threshold", "'long_prefill_tokens' of scheduler vllm_v1"},
    {"gpu_memory_utilization", "'gpu_memory_frac' in 'memory'"},
    {"mem_fraction_static", "'gpu_memory_frac' in 'memory' (a share for weights, reserve and KV together)"},
    {"num_gpu_blocks_override", "'num_blocks' in 'memory'"},
    {"num_gpu_blocks", "'num_blocks' in 'memory'"},
    {"max_total_tokens", "'num_blocks' in 'memory', in blocks of 'block_tokens'"},
    {"block_size", "'block_tokens' in 'memory'"},
    {"page_size", "'block_tokens' in 'memory'"},
    {"swap_space", "'host_memory_bytes' in 'memory'"},
    {"kv_cache_dtype", "'kv_policy', as in 'kv_policy: fp8', or 'kv_cache_dtype' of the model's file"},
    {"quantization", "'quantization_config' of the model's file"},
    {"dtype", "'torch_dtype' of the model's file"},
    {"enable_prefix_caching", "'prefix_caching', true or false"},
    {"no_enable_prefix_caching", "'prefix_caching: false'"},
    {"disable_radix_cache", "'prefix_caching: false'"},
    {"tensor_parallel_size", "'tp' in 'parallel'"},
    {"tp_size", "'tp' in 'parallel'"},
    {"pipeline_parallel_size", "'pp' in 'parallel'"},
    {"pp_size", "'pp' in 'parallel'"},
    {"expert_parallel_size", "'ep' in 'parallel'"},
    {"ep_size", "'ep' in 'parallel'"},
    {"enable_expert_parallel", "'ep' in 'parallel'"},
    {"data_parallel_size", "'dp' in 'parallel'"},
    {"dp_size", "'dp' in 'parallel'"},
    {"all2all_backend", "'all_to_all' in 'parallel'"},
    {"moe_a2a_backend", "'all_to_all' in 'parallel'"},
    {"max_model_len", "'max_model_len'"},
    {"context_length", "'max_model_len'"},
    {"max_seq_len", "'max_model_len'"},
    {"cuda_graph_max_bs", "'largest_graph_tokens' of scheduler vllm_v1"},
    {"max_cudagraph_capture_size", "'largest_graph_tokens' of scheduler vllm_v1"},
    {"schedule_conservativeness", "without a counterpart (the nearest is 'watermark_frac' of scheduler vllm_v0 or sarathi)"},
    {"speculative_config", "without a counterpart"},
    {"request_rate", "'rate_per_s' of the trace's arrival, as in 'trace: {generate: {arrival: {poisson: {rate_per_s: 2}}, ...}}'"},
    {"qps", "'rate_per_s' of the trace's arrival, as in 'trace: {generate: {arrival: {poisson: {rate_per_s: 2}}, ...}}'"},
    {"num_prompts", "'requests' of 'trace: {generate: ...}', or 'limit_requests' of a trace file"},
    {"num_requests", "'requests' of 'trace: {generate: ...}', or 'limit_requests' of a trace file"},
    {"random_input_len", "'prompt_tokens' of 'trace: {generate: ...}'"},
    {"input_len", "'prompt_tokens' of 'trace: {generate: ...}'"},
    {"random_output_len", "'output_tokens' of 'trace: {generate: ...}'"},
    {"output_len", "'output_tokens' of 'trace: {generate: ...}'"},
    {"dataset_path", "'file' of 'trace'"},
    {"gpu", "'hardware'"},
    {"gpu_type", "'hardware'"},
    {"num_gpus", "'tp' in 'parallel', or 'replicas'"},
};

// Replaced by the value: NUMBER if above 0, SHARE if at most 1, FILE for a text.
struct Placeholder {
  const char *word, *absent;  // absent: for values of other kinds
};
constexpr Placeholder kNumber{"NUMBER", "N"}, kShare{"SHARE", "0.9"}, kFile{"FILE", "PATH"};

const std::map<std::string, std::string>& long_forms() {
  static const std::map<std::string, std::string> forms = {{"trace", "{file: FILE}"},
                                                           {"parallel", "{tp: NUMBER}"},
                                                           {"search", "{rate: [LOW, HIGH]}"},
                                                           {"stop", "{after_s: NUMBER}"},
                                                           {"memory", "{gpu_memory_frac: SHARE}"},
                                                           {"generate",
                                                            "{requests: NUMBER, arrival: {poisson: {rate_per_s: 2}}, prompt_tokens: "
                                                            "{fixed: {value: 512}}, output_tokens: {fixed: {value: 128}}}"},
                                                           {"validate", "{requests: FILE}"},
                                                           {"output", "{perfetto: true}"},
                                                           {"samples", "{NAME: {file: FILE}}"},
                                                           {"pools", "{prefill: {replicas: 1}, decode: {replicas: 1}}"}};
  return forms;
}

std::string last_part(const std::string& path) { return path.substr(path.rfind('.') + 1); }

std::string form_at(const std::string& path) {
  const bool is_second_level = std::count(path.begin(), path.end(), '.') == 1;
  if (is_second_level && path.starts_with("samples.")) return "{file: FILE}";
  if (is_second_level && path.starts_with("pools.")) return "{replicas: NUMBER}";
  const auto found = long_forms().find(last_part(path));
  return found == long_forms().end() ? "" : found->second;
}

std::string filled(std::string form, const Placeholder& placeholder, const std::string& value, bool fits) {
  if (const std::size_t at = form.find(placeholder.word); at != std::string::npos)
    form.replace(at, std::string(placeholder.word).size(), fits ? value : placeholder.absent);
  return form;
}

// With the policy's name: `name` or similar, or the one key without a value; "" if none.
std::string naming_key(const YAML::Node& found) {
  for (const char* const key : {"name", "type", "policy"})
    if (const YAML::Node value = std::as_const(found)[key]; value.IsDefined() && value.IsScalar()) return key;
  std::string bare;
  for (const auto& item : found) {
    if (!item.second.IsNull()) continue;
    if (!bare.empty()) return "";
    bare = item.first.Scalar();
  }
  return bare;
}

// Several policies in one mapping.
std::string advice_on_several(const std::string& key, const YAML::Node& found) {
  std::string list;
  for (const auto& item : found) {
    if (!item.second.IsMap()) return "";
    list += fmt::format("{}{{{}: {{...}}}}", list.empty() ? "" : ", ", item.first.Scalar());
  }
  return fmt::format("; to compare several, write a list: '{}: [{}]'", key, list);
}

}  // namespace

std::string own_key_for(const std::string& foreign) {
  std::string key = foreign.substr(std::min(foreign.find_first_not_of('-'), foreign.size()));
  std::replace(key.begin(), key.end(), '-', '_');
  const auto found = std::find_if(std::begin(kOwnKeys), std::end(kOwnKeys), [&](const auto& one) { return one.first == key; });
  return found == std::end(kOwnKeys) ? "" : found->second;
}

std::string advice_on_unknown(const std::string& key, const std::string& path, const AskedByPath& asked,
                              const std::set<std::string>& seen) {
  const std::string own = own_key_for(key);
  std::vector<std::string> places;
  for (const auto& [other, keys] : asked)
    if (other != path && keys.contains(key)) places.push_back(other.empty() ? "at the top level" : "in '" + other + "'");
  const bool is_named_alike = own.starts_with("'" + key + "'");
  if (!own.empty() && !(is_named_alike && !places.empty())) return "; here it is " + own;
  return places.empty() ? suggestion(key, {seen.begin(), seen.end()}) : "; it belongs " + join(places, " or ");
}

std::string advice_on_mapping(const std::string& path, const YAML::Node& found) {
  std::string form = form_at(path);
  if (form.empty()) return "";
  const std::string value = found.IsScalar() ? found.Scalar() : "";
  double number = 0;
  const bool is_number = parse_real(value, number);
  form = filled(form, kNumber, value, is_number && number > 0);
  form = filled(form, kShare, value, is_number && number > 0 && number <= 1);
  form = filled(form, kFile, value, !value.empty() && !is_number);
  return fmt::format("; write '{}: {}'", last_part(path), form);
}

bool names_by_key(const YAML::Node& found) {
  return found.IsMap() && !naming_key(found).empty() && std::as_const(found)[naming_key(found)].IsScalar();
}

std::string advice_on_named(const std::string& key, const YAML::Node& found) {
  if (!found.IsMap() || found.size() == 0) return "";
  const std::string naming = naming_key(found);
  if (naming.empty()) return advice_on_several(key, found);
  const std::string name = names_by_key(found) ? std::as_const(found)[naming].Scalar() : naming;
  YAML::Node parameters(YAML::NodeType::Map);
  for (const auto& item : found)
    if (item.first.Scalar() != naming) parameters[item.first.Scalar()] = item.second;
  if (parameters.size() == 0) return fmt::format("; write '{}: {}'", key, name);
  return fmt::format("; write '{}: {{{}: {}}}'", key, name, yaml_on_one_line(parameters));
}

std::string advice_on_parameters(const std::string& path, const YAML::Node& found, const std::string& key, const std::string& fallback) {
  const std::string name = last_part(path);
  if (fallback.empty()) return fmt::format("; write '{}: {{{}: {}}}'", name, key, yaml_on_one_line(found));
  return fmt::format("; for example '{}: {{{}: {}}}'", name, key, fallback);
}

}  // namespace kvlab
