#pragma once

#include <yaml-cpp/yaml.h>

#include <map>
#include <memory>
#include <string>

namespace kvlab {

// The values of a mapping, which must not change. Other nodes have none. Copies share them. yaml-cpp's own lookup writes the text of each
// key that is absent.
class KeyedValues {
 public:
  explicit KeyedValues(const YAML::Node& node) {
    if (node.IsDefined() && node.IsMap())
      for (const auto& item : node) values_->emplace(item.first.Scalar(), item.second);
  }
  [[nodiscard]] bool contain(const std::string& key) const { return values_->contains(key); }
  // Undefined if absent.
  [[nodiscard]] YAML::Node at(const std::string& key) const {
    const auto found = values_->find(key);
    return found == values_->end() ? YAML::Node(YAML::NodeType::Undefined) : found->second;
  }

 private:
  std::shared_ptr<std::map<std::string, YAML::Node>> values_ = std::make_shared<std::map<std::string, YAML::Node>>();
};

}  // namespace kvlab
