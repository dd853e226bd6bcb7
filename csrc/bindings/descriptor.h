// A file descriptor that is closed with the object that owns it.
#pragma once

#include <unistd.h>

#include <utility>

namespace pysampler::bindings {

class Descriptor {
 public:
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() { close(); }

    int fileno() const { return fd_; }
    void close() {
        if (fd_ >= 0) ::close(std::exchange(fd_, -1));
    }

 private:
    int fd_;
};

}  // namespace pysampler::bindings
