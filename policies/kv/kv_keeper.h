#pragma once

namespace kvlab {

struct Cast;
struct Dequantize;
struct LayerStep;
struct LowRankRebuild;
struct PackDropped;
struct PruneChannels;
struct RestoreOutliers;
struct Selection;
struct Unsparsify;

// Keeps K and V that leave the rows but stay in the cache, and brings them back.
class KvKeeper {
 public:
  virtual ~KvKeeper() = default;

  // Keeps the codes of formats, so that rows need not hold the vectors: called for every operation that fills listed vectors from codes, in
  // order. A vector that several operations list is the result of all of them in this order, whatever the rows held before the first.
  virtual void keep(const LayerStep& step, const Cast& op) = 0;
  virtual void keep(const LayerStep& step, const Dequantize& op) = 0;
  virtual void keep(const LayerStep& step, const LowRankRebuild& op) = 0;
  virtual void keep(const LayerStep& step, const PruneChannels& op) = 0;
  virtual void keep(const LayerStep& step, const RestoreOutliers& op) = 0;
  virtual void keep(const LayerStep& step, const Unsparsify& op) = 0;

  // Keeps tokens that move to CPU memory.
  virtual void keep(const LayerStep& step, const PackDropped& op) = 0;

  // Called before a decode step reads these tokens: brings their K and V from the lower tier (Selector::lower) into the rows; index null:
  // of all tokens. A second call in the same step and layer does nothing.
  virtual void fetch(const LayerStep& step, const Selection& selection) = 0;
};

}  // namespace kvlab
