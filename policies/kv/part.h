#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "policies/kv/needs.h"
#include "policies/kv/step.h"
#include "policies/kv/step_key.h"
#include "policies/kv/traits.h"

namespace kvlab {

class TrainedTensors;

class KvPart;

// State per sequence, a member of the part.
class PartState {
 public:
  explicit PartState(KvPart& part);
  virtual ~PartState() = default;
  PartState(const PartState&) = delete;
  PartState& operator=(const PartState&) = delete;
  // The sequence at this index of the batch is gone or moved.
  virtual void forget(std::int32_t index) = 0;
};

// Sees one layer of a ragged batch at a time and computes only through Ops, also on shapes (null data).
class KvPart {
 public:
  KvPart() = default;
  KvPart(const KvPart&) = delete;
  KvPart& operator=(const KvPart&) = delete;
  virtual ~KvPart() = default;
  [[nodiscard]] virtual Needs needs() const { return {}; }
  [[nodiscard]] virtual Traits provides() const { return {}; }
  [[nodiscard]] virtual std::vector<Conflict> conflicts() const { return {}; }
  // 4-byte statistics per token and KV head, from channel first_word() on; 0 for new tokens.
  [[nodiscard]] virtual std::int32_t num_words() const { return 0; }
  [[nodiscard]] virtual std::int32_t resident_words() const { return num_words(); }
  virtual void bind(std::int32_t first_word) { first_word_ = first_word; }
  // "" or why this part cannot run.
  [[nodiscard]] virtual std::string refuses(const ModelShape&) const { return ""; }
  // Layers of one kind are independent and make equal calls for equal rows. Return `layer` for dependent layers or many kinds.
  [[nodiscard]] virtual std::int32_t layer_kind(std::int32_t /*layer*/) const { return 0; }
  // Adds what decode work depends on, besides row lengths, the trigger's target and being first after the prompt.
  virtual void step_key(const SeqStep&, StepKey&) const {}
  // While nothing is evicted.
  virtual void whole_key(const SeqStep& seq, StepKey& key) const { step_key(seq, key); }
  // Lengths around `len` with affine calls and bytes in decode, at an equal key. For steps that cut, only with Scorer::cuts_affinely().
  [[nodiscard]] virtual Lengths affine_lengths(std::int32_t /*len*/) const { return Lengths::all(); }
  // True: calls do not depend on earlier steps. Token words are data.
  [[nodiscard]] virtual bool keeps_no_state() const { return false; }
  // Computes KV heads together: needs equally long rows before the policy acts (kFound), or also after (kLeft).
  enum class EqualHeads : std::uint8_t { kNotNeeded, kFound, kLeft };
  [[nodiscard]] virtual EqualHeads equal_heads() const { return EqualHeads::kNotNeeded; }
  // True: attends to more than the rows' tokens.
  [[nodiscard]] virtual bool adds_segments() const { return false; }
  [[nodiscard]] virtual bool splits_heads() const { return false; }
  // kIfGiven: optional.
  enum class TakesWeights : std::uint8_t { kNo, kIfGiven, kAlways };
  [[nodiscard]] virtual TakesWeights takes_weights() const { return TakesWeights::kNo; }
  // Called once. Throws InputError for a missing tensor; refuses() checks shapes.
  virtual void set_weights(const std::shared_ptr<const TrainedTensors>&) {}
  // PartState::forget() of all states. Parts pass it on to parts that they hold.
  virtual void forget(std::int32_t index) {
    for (PartState* const state : states_) state->forget(index);
  }

 protected:
  [[nodiscard]] std::int32_t first_word() const { return first_word_; }

 private:
  friend PartState;
  std::int32_t first_word_ = 0;
  std::vector<PartState*> states_;
};

inline PartState::PartState(KvPart& part) { part.states_.push_back(this); }

}  // namespace kvlab
