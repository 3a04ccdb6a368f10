#include "tests/actors/serve/http/raw_client.hpp"

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>

namespace troupe::http {
namespace {

constexpr int kPatienceMs = 20'000;

std::string lower(std::string text) {
  for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
  return text;
}

}  // namespace

RawClient::RawClient(int port, int receive_buffer_bytes)
    : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  if (receive_buffer_bytes > 0)
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<std::uint16_t>(port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket_.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) {
    pollfd wait{socket_.get(), POLLOUT, 0};
    // Not Catch's: clients are made in several threads.
    if (errno != EINPROGRESS || ::poll(&wait, 1, kPatienceMs) != 1)
      throw std::runtime_error("cannot connect");
  }
}

bool RawClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else {
      pollfd wait{socket_.get(), POLLOUT, 0};
      if ((sent < 0 && errno != EAGAIN) || ::poll(&wait, 1, kPatienceMs) != 1) return false;
    }
  }
  return true;
}

bool RawClient::more() {
  pollfd wait{socket_.get(), POLLIN, 0};
  if (::poll(&wait, 1, kPatienceMs) != 1) return false;
  char bytes[65536];
  const ssize_t got = ::recv(socket_.get(), bytes, sizeof bytes, 0);
  if (got > 0) received_.append(bytes, static_cast<std::size_t>(got));
  return got > 0;
}

RawResponse RawClient::read(bool head_only) {
  std::size_t end = 0;
  while ((end = received_.find("\r\n\r\n")) == std::string::npos) {
    if (!more()) return {};
  }
  RawResponse response;
  std::string head = received_.substr(0, end + 2);
  received_.erase(0, end + 4);
  response.status = std::stoi(head.substr(9, 3));
  head.erase(0, head.find("\r\n") + 2);
  while (!head.empty()) {
    const std::size_t colon = head.find(": "), line = head.find("\r\n");
    response.headers[lower(head.substr(0, colon))] = head.substr(colon + 2, line - colon - 2);
    head.erase(0, line + 2);
  }
  const auto length = response.headers.find("content-length");
  if (length == response.headers.end() || head_only) return response;
  const std::size_t bytes = std::stoul(length->second);
  while (received_.size() < bytes) {
    if (!more()) return {};
  }
  response.body = received_.substr(0, bytes);
  received_.erase(0, bytes);
  return response;
}

bool RawClient::closed() {
  return received_.empty() && !more() && received_.empty();
}

bool RawClient::closed_by_now() {
  char byte = 0;
  pollfd wait{socket_.get(), POLLIN, 0};
  return ::poll(&wait, 1, 0) == 1 && ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) <= 0;
}

void RawClient::finish_sending() {
  ::shutdown(socket_.get(), SHUT_WR);
}
void RawClient::leave() {
  socket_.reset();
}

std::string get(std::string_view path, std::string_view fields) {
  return "GET " + std::string(path) + " HTTP/1.1\r\nHost: here\r\n" + std::string(fields) + "\r\n";
}
std::string post(std::string_view path, std::string_view body, std::string_view fields) {
  return "POST " + std::string(path) +
         " HTTP/1.1\r\nHost: here\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
         std::string(fields) + "\r\n" + std::string(body);
}

}  // namespace troupe::http
