/// Bytes in order to and from one other rank, without ever blocking: a socket, or a pair of rings in shared
/// memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "collectives/native/ring.hpp"
#include "collectives/secret_stream.hpp"
#include "runtime/core/fd.hpp"

namespace troupe::collectives {

/// Not thread-safe. This one is not connected yet, or will not be: it takes and gives nothing.
class ByteStream {
 public:
  ByteStream() = default;
  explicit ByteStream(std::string broken) : broken_(std::move(broken)) {}
  virtual ~ByteStream() = default;
  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;

  /// Writes what fits of `pieces`, in order; how many bytes.
  virtual std::size_t write(std::span<const std::span<const std::byte>> /*pieces*/) { return 0; }
  /// Reads what is there, at most into.size(); how many bytes.
  virtual std::size_t read(std::span<std::byte> /*into*/) { return 0; }
  /// No more is written from this end.
  virtual void end() {}
  /// Drops what comes. True: the other host has all that was written, or has hung up.
  virtual bool has_arrived() { return true; }
  /// What to poll, or -1.
  virtual int fd() const { return -1; }
  /// Why nothing will come any more, or empty. What came before is still there.
  const std::string& broken() const { return broken_; }

 protected:
  std::string broken_;
};

class SocketStream final : public ByteStream {
 public:
  /// `fd`: a connected stream socket. Over TCP a host that fell silent is told from one with nothing to say
  /// after 15 s, while nothing is under way to it. A rank that computes may take nothing for long: the
  /// deadlines of operations are for that.
  explicit SocketStream(UniqueFd fd);
  std::size_t write(std::span<const std::span<const std::byte>> pieces) override;
  std::size_t read(std::span<std::byte> into) override;
  void end() override;
  bool has_arrived() override;
  int fd() const override { return fd_.get(); }

 private:
  UniqueFd fd_;
  int fin_ = 0;  ///< what the end of the stream counts among the bytes that have to arrive
};

/// Encrypts what goes over another stream, and opens what comes, in frames of up to 64 KiB.
///
/// Bytes count as written once all of their frame is out: who offers bytes again that were not must offer the
/// same.
class SealedStream final : public ByteStream {
 public:
  SealedStream(std::unique_ptr<ByteStream> inner, const SessionKeys& keys);
  std::size_t write(std::span<const std::span<const std::byte>> pieces) override;
  std::size_t read(std::span<std::byte> into) override;
  void end() override { inner_->end(); }
  bool has_arrived() override { return inner_->has_arrived(); }
  int fd() const override { return inner_->fd(); }

 private:
  const std::unique_ptr<ByteStream> inner_;
  SecretSealer sealer_;
  SecretOpener opener_;
  std::vector<std::byte> plain_;  ///< of the frame that is on its way out
  std::vector<std::byte> sealed_;
  std::size_t out_ = 0;            ///< of sealed_
  std::vector<std::byte> opened_;  ///< of a frame of which more came than was wanted
  std::size_t taken_ = 0;          ///< of opened_
};

/// Over one ring in each direction. The rings outlive it.
class RingStream final : public ByteStream {
 public:
  RingStream(Ring out, Ring in) : out_(out), in_(in) {}
  std::size_t write(std::span<const std::span<const std::byte>> pieces) override;
  std::size_t read(std::span<std::byte> into) override;

 private:
  Ring out_;
  Ring in_;
};

}  // namespace troupe::collectives
