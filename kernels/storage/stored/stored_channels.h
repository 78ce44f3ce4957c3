#pragma once

#include <memory>

#include "kernels/storage/prune_channels_op.h"
#include "kernels/storage/token_copy_op.h"

// PruneChannels as stored K and V (kernels/storage/stored/stored_code.h): numbers of the channels that stay, and a bit for each channel.
namespace kvlab {

class StoredCode;
struct EncodedRows;

inline TokenCopy unpacking(const PruneChannels& a) { return {.tokens = a.tokens, .way = TokenCopy::Way::kIntoPages, .keep = a.keep}; }
std::unique_ptr<StoredCode> stored_code(const PruneChannels&, const EncodedRows&);

}  // namespace kvlab
