#pragma once

#include <string>
#include <string_view>

namespace kvlab {

class DecodeOp;
struct LayerStep;
struct Selection;
struct TokenCopy;

inline constexpr std::string_view kAtRest = "at_rest";
inline std::string at_rest_of(const std::string& recipe) { return std::string(kAtRest) + "/" + recipe; }

// K and V that leave the rows but stay cached.
class KvKeeper {
 public:
  virtual ~KvKeeper() = default;

  // Called in order for every operation that decodes into listed vectors. The last result of a vector counts.
  virtual void keep(const LayerStep& step, const DecodeOp& op) = 0;

  // kDropped, to CPU memory.
  virtual void keep(const LayerStep& step, const TokenCopy& dropped) = 0;

  // Brings K and V from the lower tier (Selector::lower) before a decode step reads them; index null: all. Repeated calls in a step and
  // layer do nothing.
  virtual void fetch(const LayerStep& step, const Selection& selection) = 0;
};

}  // namespace kvlab
