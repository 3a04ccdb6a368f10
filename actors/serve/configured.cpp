#include "actors/serve/configured.hpp"

#include <cstdlib>

#include "actors/serve/serve.hpp"

namespace troupe::serve {
namespace {

const config::ServingEntry* entry_of(const std::string& name) {
  const auto* file = serving_file();
  if (file == nullptr) return nullptr;
  const auto at = file->deployments.find(name);
  return at == file->deployments.end() ? nullptr : &at->second;
}

}  // namespace

const config::ServingFile* serving_file() {
  static const std::optional<config::ServingFile> file = []() -> std::optional<config::ServingFile> {
    const char* const text = std::getenv(config::kServingVariable);
    if (text == nullptr || *text == '\0') return std::nullopt;
    return config::parse_serving_file(text, std::string("$") + config::kServingVariable).value();
  }();
  return file ? &*file : nullptr;
}

ServeOptions configured(const std::string& name, ServeOptions options) {
  if (std::getenv(config::kTakeOverVariable) != nullptr) options.take_over = true;
  const auto* entry = entry_of(name);
  if (entry == nullptr) return options;
  const auto take = [](const auto& from, auto& to) {
    if (from) to = *from;
  };
  if (entry->replicas) options.replicas = {entry->replicas->min, entry->replicas->max};
  take(entry->host, options.host);
  take(entry->port, options.port);
  take(entry->on_every_node, options.on_every_node);
  take(entry->tls_certificate, options.tls_certificate);
  take(entry->tls_key, options.tls_key);
  take(entry->max_batch, options.max_batch);
  take(entry->max_queue, options.max_queue);
  take(entry->batch_wait, options.batch_wait);
  take(entry->cpus, options.cpus);
  take(entry->threads, options.threads);
  take(entry->start_timeout, options.start_timeout);
  take(entry->health_timeout, options.health_timeout);
  take(entry->drain_timeout, options.drain_timeout);
  take(entry->downscale_delay, options.downscale_delay);
  return options;
}

std::string configured_weights(const std::string& name) {
  const auto* entry = entry_of(name);
  return entry == nullptr ? std::string() : entry->weights.value_or("");
}

void refuse_configured_weights(const std::string& name) {
  const std::string path = configured_weights(name);
  if (!path.empty())
    throw BadConfig(
        "cannot serve '" + name + "'",
        "the file of troupe serve run gives it weights, '" + path + "', and its struct has no net",
        "leave weights out of [deployments." + name + "]");
}

}  // namespace troupe::serve
