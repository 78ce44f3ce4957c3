#include "base/config/yaml_line.h"

#include <algorithm>

namespace kvlab {

std::string yaml_on_one_line(const YAML::Node& node) {
  YAML::Emitter out;
  out.SetMapFormat(YAML::Flow);
  out.SetSeqFormat(YAML::Flow);
  out << node;
  std::string text = out.c_str();
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace kvlab
