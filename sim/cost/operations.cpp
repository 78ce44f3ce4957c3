#include "sim/cost/operations.h"

namespace kvlab {

namespace {

struct FamilyTable {
  std::string_view name;
  std::vector<std::string> columns;
};

const FamilyTable& table_in(OpFamily family) {
  static const FamilyTable calls{"policy", {"rows", "tokens", "outputs", "bytes", "flops"}};
  static const std::vector<FamilyTable> all{{"", {"tokens"}},
                                            {"", {"sequences"}},
                                            {"attention", {"prefill_chunk", "kv_prefill", "n_decode", "kv_decode"}},
                                            {"moe", {"tokens", "activated_experts"}},
                                            {"all_reduce", {"ranks", "bytes"}},
                                            calls,
                                            calls};
  return all.at(static_cast<std::size_t>(family));
}

}  // namespace

const std::vector<std::string>& columns_of(OpFamily family) { return table_in(family).columns; }

std::string_view table_of(OpFamily family) { return table_in(family).name; }

}  // namespace kvlab
