#pragma once

#include <yaml-cpp/yaml.h>

#include <map>
#include <string>

namespace kvlab {

// The meaning of the names in a file of measured points: profiles/points_names.yaml.
struct PointNames {
  struct System {
    std::string hardware;  // a name in profiles/hardware
    int gpus = 0;          // that its fast links join
  };
  struct Model {
    std::string name;             // in profiles/models
    bool has_own_format = false;  // weights are stored as that file says, whatever a row's modes are
  };
  std::map<std::string, System> systems;
  std::map<std::string, Model> models;
  std::map<std::string, YAML::Node> formats;      // mode of matrices -> quantization_config; a scalar: weights are not quantized
  std::map<std::string, std::string> kv_types;    // precision -> type of cached keys and values; absent: as the model's file says
  std::map<std::string, std::string> schedulers;  // engine -> scheduler
};

// InputError with file:line:column.
PointNames load_point_names(const std::string& file);

}  // namespace kvlab
