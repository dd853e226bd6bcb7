// A test is a function whose name states a fact; a file of tests is a program. There is no
// framework, so the tests build wherever the library does: under sanitizers, qemu, cross compilers.
#pragma once

#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace check {

struct Test {
    const char* name;
    void (*body)();
};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

struct Register {
    Register(const char* name, void (*body)()) { tests().push_back({name, body}); }
};

[[noreturn]] inline void failed(const char* what, const char* file, int line) {
    std::fprintf(stderr, "%s:%d: not true: %s\n", file, line, what);
    std::fflush(stderr);
    std::abort();
}

// Ends a test that hangs and prints its name, well before the runner's time-out.
inline const char* running = "";
inline void on_alarm(int) {
    static constexpr char message[] = "watchdog: still running: ";
    static_cast<void>(!write(2, message, sizeof message - 1));
    static_cast<void>(!write(2, running, std::strlen(running)));
    static_cast<void>(!write(2, "\n", 1));
    std::abort();
}

inline unsigned watchdog_seconds = 120;

// An optional argument selects the tests whose name contains it.
inline int main(int argc, char** argv) {
    std::signal(SIGALRM, on_alarm);
    int count = 0;
    for (const Test& test : tests()) {
        if (argc > 1 && std::string(test.name).find(argv[1]) == std::string::npos) continue;
        running = test.name;
        alarm(watchdog_seconds);
        test.body();
        alarm(0);
        std::printf("ok %s\n", test.name);
        std::fflush(stdout);
        ++count;
    }
    std::printf("%d passed\n", count);
    return count > 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                             \
    static void name();                                        \
    static const check::Register register_##name(#name, name); \
    static void name()

#define CHECK(condition) \
    ((condition) ? static_cast<void>(0) : check::failed(#condition, __FILE__, __LINE__))
