#pragma once

namespace kvlab {

__extension__ using Int128 = __int128;

}  // namespace kvlab
