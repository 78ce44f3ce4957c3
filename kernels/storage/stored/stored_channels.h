#pragma once

#include <memory>

#include "kernels/storage/sparsify_op.h"
#include "kernels/storage/stored/stored_code.h"

namespace kvlab {

// Vectors pruned by Sparsify: numbers of the channels that stay, a bit per channel.
class PrunedVectors final : public DecodeOp {
 public:
  explicit PrunedVectors(const Sparsify& op) : op_(op) {}
  [[nodiscard]] const ListedTokens& tokens() const override { return op_.tokens; }
  [[nodiscard]] OpCall unpack_cost() const override;
  [[nodiscard]] std::unique_ptr<StoredCode> stored(const EncodedRows& rows) const override;

 private:
  Sparsify op_;
};

}  // namespace kvlab
