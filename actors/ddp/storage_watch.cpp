#include "actors/ddp/storage_watch.hpp"

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <utility>
#include <vector>

namespace troupe::train {
namespace {

constexpr c10::DispatchKey kKey = c10::DispatchKey::TESTING_ONLY_GenericWrapper;

/// Names a protected member of its base, which C++ allows through the derived class.
struct KeyAccess : c10::TensorImpl {
  static constexpr c10::DispatchKeySet c10::TensorImpl::*kKeys = &KeyAccess::key_set_;
};

using WeakStorage = c10::weak_intrusive_ptr<c10::StorageImpl>;

struct Watched {
  WeakStorage storage;  ///< keeps the address, under which it is found, from being another storage's
  std::shared_ptr<const OnUse> on_use;
  std::size_t key = 0;
};
struct WatchedStorages {
  std::shared_mutex mutex;
  std::unordered_map<const c10::StorageImpl*, Watched> watched;  ///< guarded by mutex
};
WatchedStorages& watched_storages() {
  static auto* const one = new WatchedStorages;  // backwards of other threads may outlive static destructors
  return *one;
}

/// What one operator takes, by whom to tell: as a rule one.
using Uses = std::vector<std::pair<std::shared_ptr<const OnUse>, std::vector<StorageUse>>>;

void find(const torch::Tensor& tensor, const char* written_by, Uses& uses) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->key_set().has(kKey) || !tensor.has_storage())
    return;
  WatchedStorages& all = watched_storages();
  const std::shared_lock lock(all.mutex);
  const auto found = all.watched.find(tensor.storage().unsafeGetStorageImpl());
  if (found == all.watched.end()) return;
  const Watched& watched = found->second;
  auto whom =
      std::find_if(uses.begin(), uses.end(), [&](const auto& one) { return one.first == watched.on_use; });
  if (whom == uses.end()) whom = uses.insert(whom, {watched.on_use, {}});
  whom->second.push_back(
      {watched.key, tensor, written_by != nullptr, written_by != nullptr ? written_by : ""});
}

/// `written_by`: the operator that changes it in place; null: it is read.
void find(const c10::IValue& value, const char* written_by, Uses& uses) {
  if (value.isTensor()) {
    find(value.toTensor(), written_by, uses);
  } else if (value.isTensorList()) {
    for (const torch::Tensor& tensor : value.toTensorVector()) find(tensor, written_by, uses);
  } else if (value.isList()) {  // of optional tensors
    for (const c10::IValue& one : value.toListRef()) find(one, written_by, uses);
  }
}

/// Any operator that takes a watched tensor.
void before_operator(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard once(kKey);
  const auto& arguments = op.schema().arguments();
  {
    Uses uses;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const bool written = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
      find((*stack)[stack->size() - arguments.size() + i], written ? op.schema().name().c_str() : nullptr,
           uses);
    }
    for (const auto& [on_use, its] : uses) (*on_use)(its);
  }
  op.callBoxed(stack);
}

/// At the first use alone: a program that shards nothing has no fallback of ours.
void install_fallback() {
  static auto* const installed = [] {
    auto* library = new torch::Library(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    library->fallback(torch::CppFunction::makeFromBoxedFunction<&before_operator>());
    return library;
  }();
  (void)installed;
}

}  // namespace

void watch_storage(const torch::Tensor& tensor, std::shared_ptr<const OnUse> on_use, std::size_t key) {
  install_fallback();
  const c10::Storage& storage = tensor.storage();
  Watched watched{WeakStorage(c10::intrusive_ptr<c10::StorageImpl>::unsafe_reclaim_from_nonowning(
                      storage.unsafeGetStorageImpl())),
                  std::move(on_use), key};
  WatchedStorages& all = watched_storages();
  const std::unique_lock lock(all.mutex);
  std::erase_if(all.watched, [](const auto& one) { return one.second.storage.expired(); });
  all.watched.insert_or_assign(storage.unsafeGetStorageImpl(), std::move(watched));
}

void mark_watched(const torch::Tensor& tensor) {
  c10::DispatchKeySet& keys = tensor.unsafeGetTensorImpl()->*KeyAccess::kKeys;
  keys = keys.add(kKey);
}

}  // namespace troupe::train
