#pragma once

#include <cstdint>
#include <vector>

#include "base/config/registration.h"
#include "kernels/attention/attend/attend.h"
#include "policies/kv/part.h"

namespace kvlab {

class Selector : public KvPart {
 public:
  [[nodiscard]] Lengths affine_lengths(std::int32_t len) const override { return Lengths::only(len); }
  // Tensors kept off the GPU between decode steps, except for tokens of the last step and of stays().
  enum class Lower : std::uint8_t { kNothing, kValues, kKeysAndValues };
  // Unless kNothing, select() and update() read only new tokens and the last step's, or call LayerStep::fetch() first.
  [[nodiscard]] virtual Lower lower(std::int32_t /*layer*/) const { return Lower::kNothing; }
  // After a step: more tokens that stay on the GPU; for a prompt, those that its first decode step always reads. index null: none. Memory:
  // step.ops' or the part's.
  virtual Selection stays(LayerStep&) { return {}; }
  // The experiment's budget replaces its own.
  [[nodiscard]] virtual bool takes_budget() const { return false; }
  virtual void set_budget(const Budget&) {}
  // After appends and evictions, before encoding. Older keys may be encoded and are not read.
  virtual void update(LayerStep&) {}
  // After update(), with prompt tokens: tokens to keep exact, if the format can; index null: none. resident() counts them.
  virtual Selection exact_tokens(LayerStep&) { return {}; }
  // In decode, before attention, this step's token appended; index null: all. Memory as in stays().
  virtual Selection select(LayerStep& step) = 0;
  virtual Traffic take_traffic() { return {}; }
  [[nodiscard]] virtual FetchBeside fetches_beside() const { return FetchBeside::kNothing; }
  // `kv`: all on the GPU.
  [[nodiscard]] virtual TierBytes resident(const ModelShape&, const KvRows&, const TierBytes& kv) const { return kv; }
  // If layers differ.
  [[nodiscard]] virtual TierBytes resident_in_layer(std::int32_t /*layer*/, const ModelShape& model, const KvRows& rows,
                                                    const TierBytes& kv) const {
    return resident(model, rows, kv);
  }
  // After select(): appends other segments, such as low-bit copies, valid until the next step. Segment 0 is the selection.
  virtual void add_segments(LayerStep&, std::vector<Segment>& /*segments*/) {}
  [[nodiscard]] virtual bool selects_all() const { return false; }

  [[nodiscard]] Traits provides() const override { return Traits().set(Trait::kSelects, !selects_all()); }
  [[nodiscard]] std::vector<Conflict> conflicts() const override;
};

using SelectorRegistry = Registry<Selector>;

}  // namespace kvlab
