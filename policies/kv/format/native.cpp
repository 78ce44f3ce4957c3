#include "policies/kv/format/format.h"

namespace kvlab {

namespace {

// fp16 or bf16.
class Native final : public Format {
 public:
  explicit Native(Params&) {}
  [[nodiscard]] bool is_native() const override { return true; }
  [[nodiscard]] bool encodes() const override { return false; }
  [[nodiscard]] Lengths affine_lengths(std::int32_t) const override { return Lengths::all(); }
  [[nodiscard]] bool stores_prompt_keys_alone() const override { return true; }
};

KVLAB_REGISTER(Format, Native, "native", "K and V in the model's own type", "paged KV cache: Kwon et al. 2023, arXiv:2309.06180");

}  // namespace

}  // namespace kvlab
