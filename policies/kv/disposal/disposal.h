#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/config/registration.h"
#include "kernels/attention/attend/attend.h"
#include "policies/kv/format/format.h"
#include "policies/kv/part.h"

namespace kvlab {

// keep[row] ascending indices from index_first[row] on.
struct Kept {
  const std::int64_t* index_first = nullptr;  // [num_rows + 1]
  const std::int32_t* index = nullptr;
  const std::int32_t* keep = nullptr;  // [num_rows]
};

// "The others": tokens that are not kept.
class Disposal : public KvPart {
 public:
  // After attention, before ranking.
  virtual void observe(LayerStep&) {}
  // Lowers scores [kv.total()] of disposed tokens still in rows, so that they are not kept again; protected tokens have +infinity.
  virtual void rank(LayerStep&, float* /*scores*/) {}
  // Moves kept tokens to the front of their rows; the caller shortens the rows.
  virtual void dispose(LayerStep& step, const Kept& kept) = 0;
  // kOrdered: dispose() needs rows in order of position. kAsked: any order, but the experiment asks for order. kAnyOrder: in decode, after
  // let_go(), a row's last token may overwrite one that goes.
  enum class Evicts : std::uint8_t { kOrdered, kAsked, kAnyOrder };
  [[nodiscard]] virtual Evicts evicts() const { return Evicts::kOrdered; }
  // dispose() without the move, before other tokens take the places.
  virtual void let_go(LayerStep&, const Kept&) {}
  [[nodiscard]] virtual bool only_drops() const { return false; }
  // Changes the tokens that stay.
  [[nodiscard]] virtual bool merges() const { return false; }
  // False: the others stay in low precision, only marked by dispose().
  [[nodiscard]] virtual bool shrinks() const { return true; }
  // Encodes tokens that stay.
  [[nodiscard]] virtual bool encodes() const { return false; }
  // Appends other attended segments, valid until the next step.
  virtual void add_segments(LayerStep&, std::vector<Segment>& /*segments*/) {}
  // Evicts nothing.
  [[nodiscard]] virtual bool acts_alone() const { return false; }
  // rows: the format's count.
  [[nodiscard]] virtual TierBytes resident(const ModelShape&, std::int32_t /*layer*/, std::span<const SeqStep> /*seqs*/, const KvRows&,
                                           const Format&, const TierBytes& rows) const {
    return rows;
  }
  virtual Traffic take_traffic(const ModelShape&, const Format&) { return {}; }

  [[nodiscard]] Traits provides() const override {
    return Traits().set(Trait::kShrinks, shrinks()).set(Trait::kKeepsOthers, !only_drops());
  }
  [[nodiscard]] std::vector<Conflict> conflicts() const override;
};

using DisposalRegistry = Registry<Disposal>;

// Any order of rows, unless `in_place: false`.
class InPlaceDisposal : public Disposal {
 public:
  [[nodiscard]] Evicts evicts() const override { return in_place_ ? Evicts::kAnyOrder : Evicts::kAsked; }

 protected:
  explicit InPlaceDisposal(Params& p)
      : in_place_(p.flag("in_place", true, "in decode a token that goes is overwritten by its row's last one; false: the others move up")) {
  }

 private:
  bool in_place_;
};

}  // namespace kvlab
