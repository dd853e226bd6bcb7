// A file descriptor that is closed with the object that owns it.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>

namespace pysampler {

// Owner: any thread; if several close it, one does. A number that is used must not be closed
// meanwhile.
class Descriptor {
 public:
    explicit Descriptor(int fd) : fd_(fd) { known_ = identify(fd, device_, inode_); }
    Descriptor& operator=(Descriptor&&) = delete;  // nor copies
    ~Descriptor() { close(); }

    int fileno() const noexcept { return fd_.load(std::memory_order_relaxed); }
    int take() { return fd_.exchange(-1, std::memory_order_relaxed); }
    // The program may have closed our descriptor, as os.closerange(3, ...) does, and opened another
    // file under its number: that file stays open. If several threads close it, one does.
    void close() {
        const int fd = take();
        dev_t device{};
        ino_t inode{};
        if (known_ && identify(fd, device, inode) && device == device_ && inode == inode_) {
            ::close(fd);
        }
    }

 private:
    static bool identify(int fd, dev_t& device, ino_t& inode) {
        struct stat status{};
        if (fd < 0 || fstat(fd, &status) != 0) return false;
        device = status.st_dev;
        inode = status.st_ino;
        return true;
    }

    std::atomic<int> fd_;
    dev_t device_{};
    ino_t inode_{};
    bool known_ = false;
};

}  // namespace pysampler
