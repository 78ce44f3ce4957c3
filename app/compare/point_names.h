#pragma once

#include <yaml-cpp/yaml.h>

#include <map>
#include <string>

namespace kvlab {

// profiles/points_names.yaml.
struct PointNames {
  struct System {
    std::string hardware;  // in profiles/hardware
    int gpus = 0;          // joined by fast links
  };
  struct Model {
    std::string name;             // in profiles/models
    bool has_own_format = false;  // weights are stored as in that file, whatever the row's modes
  };
  std::map<std::string, System> systems;
  std::map<std::string, Model> models;
  std::map<std::string, YAML::Node> formats;    // mode of matrices -> quantization_config; a scalar: not quantized
  std::map<std::string, std::string> kv_types;  // precision -> type of cached keys and values; absent: as in the model's file
  std::map<std::string, std::string> schedulers;
};

// Throws InputError.
PointNames load_point_names(const std::string& file);

}  // namespace kvlab
