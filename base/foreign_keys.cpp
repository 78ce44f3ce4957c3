#include "base/foreign_keys.h"

#include <algorithm>
#include <map>

namespace kvlab {

namespace {

const std::map<std::string, std::string>& table() {
  static const std::map<std::string, std::string> own = [] {
    const std::string budget = "'budget_tokens' of the scheduler, as in 'scheduler: {vllm_v1: {budget_tokens: 8192}}'",
                      rows = "'max_num_seqs' of the scheduler, as in 'scheduler: {vllm_v1: {max_num_seqs: 256}}'",
                      chunked = "'chunked_prefill' of scheduler vllm_v1", frac = "'gpu_memory_frac' in 'memory'",
                      blocks = "'num_blocks' in 'memory'", block = "'block_tokens' in 'memory'", cached = "'prefix_caching', true or false",
                      tp = "'tp' in 'parallel'", pp = "'pp' in 'parallel'", ep = "'ep' in 'parallel'", dp = "'dp' in 'parallel'",
                      longest = "'max_model_len'", graphs = "'largest_graph_tokens' of scheduler vllm_v1",
                      host = "'host_memory_bytes' in 'memory'",
                      rate = "'rate_per_s' of the trace's arrival, as in 'trace: {generate: {arrival: {poisson: {rate_per_s: 2}}, ...}}'",
                      requests = "'requests' of 'trace: {generate: ...}', or 'limit_requests' of a trace file",
                      prompt = "'prompt_tokens' of 'trace: {generate: ...}'", output = "'output_tokens' of 'trace: {generate: ...}'",
                      order = "'order', as in 'order: priority'", none = "without a counterpart";
    return std::map<std::string, std::string>{
        {"max_num_batched_tokens", budget},
        {"chunked_prefill_size", budget},
        {"max_prefill_tokens", budget},
        {"max_num_seqs", rows},
        {"max_running_requests", rows},
        {"max_batch_size", rows},
        {"enable_chunked_prefill", chunked},
        {"async_scheduling", "'async_scheduling' of scheduler vllm_v1"},
        {"scheduler_reserve_full_isl", "'reserve_full_prompt' of scheduler vllm_v1"},
        {"enable_mixed_chunk", "'mixed_chunk' of scheduler sglang"},
        {"disable_overlap_schedule", "'overlap: false' of scheduler sglang"},
        {"scheduling_policy", order},
        {"schedule_policy", order + "; SGLang's lpm is longest_prefix, its lof longest_output"},
        {"enable_priority_scheduling", "'order: priority'"},
        {"load_balance_method", "'dispatcher', as in 'dispatcher: round_robin'"},
        {"enforce_eager", graphs + ", 0"},
        {"disable_cuda_graph", graphs + ", 0"},
        {"disable_hybrid_kv_cache_manager", "'hybrid: false' in 'memory'"},
        {"model_path", "'model'"},
        {"long_prefill_token_threshold", "'long_prefill_tokens' of scheduler vllm_v1"},
        {"gpu_memory_utilization", frac},
        {"mem_fraction_static", frac + " (a share for weights, reserve and KV together)"},
        {"num_gpu_blocks_override", blocks},
        {"num_gpu_blocks", blocks},
        {"max_total_tokens", blocks + ", in blocks of 'block_tokens'"},
        {"block_size", block},
        {"page_size", block},
        {"swap_space", host},
        {"kv_cache_dtype", "'kv_policy', as in 'kv_policy: fp8', or 'kv_cache_dtype' of the model's file"},
        {"quantization", "'quantization_config' of the model's file"},
        {"dtype", "'torch_dtype' of the model's file"},
        {"enable_prefix_caching", cached},
        {"no_enable_prefix_caching", "'prefix_caching: false'"},
        {"disable_radix_cache", "'prefix_caching: false'"},
        {"tensor_parallel_size", tp},
        {"tp_size", tp},
        {"pipeline_parallel_size", pp},
        {"pp_size", pp},
        {"expert_parallel_size", ep},
        {"ep_size", ep},
        {"enable_expert_parallel", ep},
        {"data_parallel_size", dp},
        {"dp_size", dp},
        {"all2all_backend", "'all_to_all' in 'parallel'"},
        {"max_model_len", longest},
        {"context_length", longest},
        {"max_seq_len", longest},
        {"cuda_graph_max_bs", graphs},
        {"max_cudagraph_capture_size", graphs},
        {"schedule_conservativeness", none + " (the nearest is 'watermark_frac' of scheduler vllm_v0 or sarathi)"},
        {"speculative_config", none},
        {"request_rate", rate},
        {"qps", rate},
        {"num_prompts", requests},
        {"num_requests", requests},
        {"random_input_len", prompt},
        {"input_len", prompt},
        {"random_output_len", output},
        {"output_len", output},
        {"dataset_path", "'file' of 'trace'"},
        {"gpu", "'hardware'"},
        {"gpu_type", "'hardware'"},
        {"num_gpus", tp + ", or 'replicas'"},
    };
  }();
  return own;
}

}  // namespace

std::string own_key_for(const std::string& foreign) {
  std::string key = foreign.substr(std::min(foreign.find_first_not_of('-'), foreign.size()));
  std::replace(key.begin(), key.end(), '-', '_');
  const auto found = table().find(key);
  return found == table().end() ? "" : found->second;
}

}  // namespace kvlab
