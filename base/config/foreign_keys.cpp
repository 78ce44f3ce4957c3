#include "base/config/foreign_keys.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

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

}  // namespace kvlab
