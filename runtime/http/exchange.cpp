#include "runtime/http/exchange.hpp"

#include <exception>
#include <string>
#include <utility>

#include "runtime/core/assert.hpp"
#include "runtime/core/log.hpp"
#include "runtime/http/server.hpp"

namespace troupe::http {

void Exchange::leave() {
  std::function<void()> call;
  {
    const std::lock_guard lock(mutex);
    left = true;
    if (!settled) call = std::exchange(on_left, nullptr);
  }
  try {
    if (call) call();
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("http: on_client_left threw: ") + error.what());
  }
}

void Exchange::settle() {
  std::function<void()> unused;
  const std::lock_guard lock(mutex);
  settled = true;
  unused.swap(on_left);
}

Answer::Answer(std::function<void(Response)> take) : exchange_(std::make_shared<Exchange>(std::move(take))) {}
Answer::Answer(std::shared_ptr<Exchange> exchange) : exchange_(std::move(exchange)) {}

Answer& Answer::operator=(Answer&& other) noexcept {
  Answer old(std::exchange(exchange_, std::move(other.exchange_)));  // dropped: it answers 500
  return *this;
}

Answer::~Answer() {
  if (exchange_) (*this)(error_response(500, "the request was dropped without an answer"));
}

void Answer::operator()(Response response) {
  TROUPE_ASSERT(exchange_ != nullptr, "a request is answered once");
  const std::shared_ptr<Exchange> exchange = std::move(exchange_);
  exchange->settle();
  exchange->take(std::move(response));
}

bool Answer::client_left() const {
  return exchange_ && exchange_->left;
}

void Answer::on_client_left(std::function<void()> call) {
  TROUPE_ASSERT(exchange_ != nullptr, "who answered needs no word that the client left");
  {
    const std::lock_guard lock(exchange_->mutex);
    if (!exchange_->left) {
      exchange_->on_left = std::move(call);
      return;
    }
  }
  call();
}

}  // namespace troupe::http
