#include "base/config/merge_keys.h"

#include "base/config/config_file.h"
#include "base/error.h"

namespace kvlab {

namespace {

constexpr const char* kMerge = "<<";

void merge(YAML::Node& into, const YAML::Node& from, const std::string& file) {
  if (!from.IsMap()) throw InputError(place(file, from.Mark()) + ": '<<' takes a mapping or a list of mappings, as in '<<: *name'");
  for (const auto& item : from)
    if (const YAML::Node& known = into; !known[item.first.Scalar()].IsDefined()) into.force_insert(item.first, item.second);
}

}  // namespace

void resolve_merge_keys(YAML::Node& root, const std::string& file) {
  if (!root.IsMap() && !root.IsSequence()) return;
  for (const auto& item : root) {
    YAML::Node below = root.IsMap() ? item.second : YAML::Node(item);
    resolve_merge_keys(below, file);
  }
  if (!root.IsMap()) return;
  const YAML::Node& as_read = root;
  const YAML::Node named = as_read[kMerge];
  if (!named.IsDefined()) return;
  root.remove(kMerge);
  if (!named.IsSequence()) return merge(root, named, file);
  for (const auto& one : named) merge(root, one, file);
}

}  // namespace kvlab
