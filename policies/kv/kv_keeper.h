#pragma once

namespace kvlab {

class DecodeOp;
struct LayerStep;
struct PackDropped;
struct Selection;

// Keeps K and V that leave the rows but stay in the cache, and brings them back.
class KvKeeper {
 public:
  virtual ~KvKeeper() = default;

  // Keeps the codes of formats, so that rows need not hold the vectors: called for every operation that fills listed vectors from codes, in
  // order. A vector that several operations list is the result of all of them in this order, whatever the rows held before the first.
  virtual void keep(const LayerStep& step, const DecodeOp& op) = 0;

  // Keeps tokens that move to CPU memory.
  virtual void keep(const LayerStep& step, const PackDropped& op) = 0;

  // Called before a decode step reads these tokens: brings their K and V from the lower tier (Selector::lower) into the rows; index null:
  // of all tokens. A second call in the same step and layer does nothing.
  virtual void fetch(const LayerStep& step, const Selection& selection) = 0;
};

}  // namespace kvlab
