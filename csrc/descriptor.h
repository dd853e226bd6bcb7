// A file descriptor that is closed with the object that owns it.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <utility>

namespace pysampler {

class Descriptor {
 public:
    explicit Descriptor(int fd) : fd_(fd) { known_ = identify(device_, inode_); }
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() { close(); }

    int fileno() const noexcept { return fd_; }
    int take() { return std::exchange(fd_, -1); }
    // The program may have closed our descriptor, as os.closerange(3, ...) does, and opened another
    // file under its number: that file stays open.
    void close() {
        dev_t device{};
        ino_t inode{};
        const bool own = known_ && identify(device, inode) && device == device_ && inode == inode_;
        if (const int fd = take(); own) ::close(fd);
    }

 private:
    bool identify(dev_t& device, ino_t& inode) const {
        struct stat status{};
        if (fd_ < 0 || fstat(fd_, &status) != 0) return false;
        device = status.st_dev;
        inode = status.st_ino;
        return true;
    }

    int fd_;
    dev_t device_{};
    ino_t inode_{};
    bool known_ = false;
};

}  // namespace pysampler
