/// What `troupe serve run` has put into this program's environment, and how it goes before what the code
/// says.
#pragma once

#include <optional>
#include <string>

#include "actors/serve/deployment_types.hpp"
#include "runtime/config/serving_file.hpp"

namespace troupe::serve {

struct ServeOptions;

/// Null: it was started in another way. Throws BadConfig for what is no such file.
const config::ServingFile* serving_file();

/// `options`, with what that file says of the deployment.
ServeOptions configured(const std::string& name, ServeOptions options);

/// The path of the weights that the file gives this deployment; empty: none. A program that would train
/// looks here first.
std::string configured_weights(const std::string& name);
/// Throws BadConfig where the file gives it weights: its struct has no net.
void refuse_configured_weights(const std::string& name);

}  // namespace troupe::serve

namespace troupe::config {

/// A flag `--replicas 1:4` of one's own.
template <>
struct Kind<serve::Replicas> {
  static std::string type() { return Kind<ReplicaRange>::type(); }
  static std::string set(const Value& value, serve::Replicas& field) {
    ReplicaRange range;
    std::string why = Kind<ReplicaRange>::set(value, range);
    if (why.empty()) field = {range.min, range.max};
    return why;
  }
  static std::optional<Value> get(const serve::Replicas& field) {
    return Kind<ReplicaRange>::get({field.min, field.max});
  }
  static Value read(std::string_view text) { return Kind<ReplicaRange>::read(text); }
};

}  // namespace troupe::config
