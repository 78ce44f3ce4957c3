#pragma once

#include <cstdint>
#include <string_view>

namespace kvlab {

// The maximum text length in tokens by config.json. original: 'original_max_position_embeddings'; 0: absent. The meaning of
// 'max_position_embeddings' depends on "rope_type":
//   linear   usually before scaling (Vicuna 16k: 4096, factor 4), sometimes after (LLaMA-2 32K: 32768, factor 8). Without `original`
//            the longer reading counts, as in vLLM.
//   dynamic  before scaling, as in transformers.
//   yarn     before (Qwen2.5: 32768, factor 4, original 32768) or after scaling (DeepSeek: 163840, factor 40, original 4096).
//   llama3   after scaling (131072); 'factor' is not the ratio of lengths (Llama 3.2: 32, original 8192). Other kinds: after.
std::int64_t longest_text(std::string_view rope_type, double factor, std::int64_t original, std::int64_t max_positions);

}  // namespace kvlab
