#pragma once

#include <cstdint>

#include "base/config/registration.h"
#include "policies/kv/part.h"

namespace kvlab {

class Format : public KvPart {
 public:
  // Encodes due tokens after the policy acted. Rows then hold decoded values.
  virtual void store(LayerStep&) {}
  [[nodiscard]] virtual bool is_native() const { return false; }
  // False: store() does nothing, rows are all of K and V.
  [[nodiscard]] virtual bool encodes() const { return true; }
  // store() skips keys of LayerStep::exact.
  [[nodiscard]] virtual bool leaves_exact() const { return false; }
  // store() touches only the prompt's keys, once complete.
  [[nodiscard]] virtual bool stores_prompt_keys_alone() const { return false; }
  // K and V, newest tokens in full precision if the format says so.
  [[nodiscard]] virtual std::int64_t row_bytes(const ModelShape& model, std::int32_t /*layer*/, std::int32_t tokens) const {
    return 2LL * tokens * model.head_dim * model.kv_bytes;
  }
  // On the way to another tier or node, and there.
  [[nodiscard]] virtual std::int64_t transfer_bytes(const ModelShape& model, std::int32_t layer, std::int32_t tokens) const {
    return row_bytes(model, layer, tokens);
  }
  // Encoded tokens are known by their place in storage.
  [[nodiscard]] std::int32_t resident_words() const override { return 0; }
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override { return Lengths::only(len); }

  [[nodiscard]] Traits provides() const override { return Traits().set(Trait::kEncodes, !is_native()); }
  [[nodiscard]] std::vector<Conflict> conflicts() const override;
};

using FormatRegistry = Registry<Format>;

}  // namespace kvlab
