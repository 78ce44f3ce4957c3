#include "app/schema/key_tree.h"

#include <algorithm>
#include <cctype>

namespace kvlab {

namespace {

// asked_experiments.cpp writes them in capitals.
bool is_user_named(const std::string& key) {
  return !key.empty() && std::all_of(key.begin(), key.end(), [](unsigned char c) { return std::isupper(c) != 0; });
}

// Readers record a present key's type and range, but only the default text of an absent one.
int rank(const AskedKeys::Asked& a) { return a.type.empty() ? 0 : a.type == "text" ? 1 : 2; }

// A default that differs between experiments depends on other keys.
void join_docs(const AskedKeys::Asked& one, KeyNode& node) {
  if (rank(one) < rank(node.doc) || one.type.empty()) return;
  const bool is_first = rank(one) > rank(node.doc);
  node.has_default = (is_first || node.has_default) && !(rank(one) == rank(node.doc) && one.fallback != node.doc.fallback);
  if (is_first) node.doc = one;
}

void drop_defaults(KeyNode& node) {
  if (!node.has_default) node.doc.fallback.clear();
  for (auto& [key, below] : node.below) drop_defaults(below);
}

}  // namespace

KeyNode key_tree(const std::vector<AskedKeys::Asked>& asked) {
  KeyNode root;
  for (const AskedKeys::Asked& one : asked) {
    KeyNode* at = &root;
    for (std::size_t begin = 0; begin <= one.path.size();) {
      const std::size_t end = std::min(one.path.find('.', begin), one.path.size());
      const std::string key = one.path.substr(begin, end - begin);
      at = &at->below[is_user_named(key) ? kUserNamed : key];
      begin = end + 1;
    }
    join_docs(one, *at);
  }
  drop_defaults(root);
  return root;
}

}  // namespace kvlab
