/// A client that sends the bytes it is told to, whole requests or not.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "runtime/core/fd.hpp"

namespace troupe::http {

struct RawResponse {
  int status = 0;                              ///< 0: the connection was closed before a whole response came
  std::map<std::string, std::string> headers;  ///< names in lower case
  std::string body;
};

/// Every wait ends after twenty seconds, as if the server had closed.
class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer_bytes = 0);
  /// False: the server closed its end.
  bool send(std::string_view bytes);
  /// The next response. `head_only`: it has no body, whatever it says (of HEAD).
  RawResponse read(bool head_only = false);
  RawResponse ask(std::string_view bytes) { return send(bytes), read(); }
  /// Whether the server has closed, with nothing more to read.
  bool closed();
  /// The same without a wait: for a client that is to send on it again.
  bool closed_by_now();
  void finish_sending();
  void leave();  ///< closes

 private:
  bool more();
  UniqueFd socket_;
  std::string received_;
};

std::string get(std::string_view path, std::string_view fields = "");
std::string post(std::string_view path, std::string_view body, std::string_view fields = "");

}  // namespace troupe::http
