#pragma once

#include <cstdint>
#include <string_view>

namespace kvlab {

// The largest number of tokens in a text for a model whose config.json has these 'max_position_embeddings' and RoPE scaling; `original` 0:
// no 'original_max_position_embeddings'. The meaning of 'max_position_embeddings' depends on the folder and on the kind ("rope_type"):
//   linear   mostly the length before stretching (Vicuna 16k: 4096 and factor 4), in some folders already the stretched one (LLaMA-2 32K:
//            32768 and factor 8). Nothing tells them apart unless `original` is there, so the longer reading counts, as in vLLM: the limit
//            only refuses what no reading allows.
//   dynamic  the length before; transformers stretch from there.
//   yarn     before (Qwen2.5: 32768 and factor 4, original 32768) or after (DeepSeek: 163840 and factor 40, original 4096).
//   llama3   after (131072); there 'factor' is not by how much it is longer (Llama 3.2: 32 and original 8192). Other kinds likewise.
// The engine refuses longer prompts, and the simulation takes it as the default of `max_model_len`.
std::int64_t longest_text(std::string_view rope_type, double factor, std::int64_t original, std::int64_t max_positions);

}  // namespace kvlab
